"""ViT-5 as timm models: classifier, feature extractor, encoder of other libraries.

Importing the package registers them:
``timm.create_model('vit5_base_patch16_224', pretrained=True)``.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mmengine.logging import print_log
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import to_2tuple
from timm.models import build_model_with_cfg, register_model
from timm.models._features import feature_take_indices
from timm.models._manipulate import adapt_input_conv
from torch import Tensor, nn

from .backbones import ViT5
from .backbones.sizes import ARCHS, LONG_NAMES
from .checkpoint import check_grid, convert, unwrap
from .checkpoint_io import CheckpointError, download, read_file
from .layers import TokenLayout

HUB = 'https://huggingface.co/FengWang3211/ViT-5/resolve/main'
# Our name of a size -> picture sizes, and those that are published.
SIDES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    'ti': ((224,), ()),
    's': ((224,), (224,)),
    'b': ((224, 384), (224, 384)),
    'l': ((224, 384), (224, 384)),
    'xl': ((224,), ()),
}
VARIANTS = {LONG_NAMES[arch]: (arch, *sides) for arch, sides in SIDES.items()}
NAMES = [f'vit5_{size}_patch16_{side}' for size in VARIANTS for side in VARIANTS[size][1]]


def preprocessing(in_chans: int, side: int) -> dict[str, Any]:
    """What pictures are made for weights of this picture size, as the reference evaluates them."""
    return {
        'input_size': (in_chans, side, side),
        'crop_pct': 1.0 if side > 224 else 0.9,
        'interpolation': 'bicubic',
        'mean': IMAGENET_DEFAULT_MEAN,
        'std': IMAGENET_DEFAULT_STD,
    }


default_cfgs = {
    f'vit5_{size}_patch16_{side}': {
        'url': f'{HUB}/vit5_{size}_patch16_{side}.pth' if side in published else '',
        'custom_load': True,
        'num_classes': 1000,
        'pool_size': None,
        **preprocessing(3, side),
        'first_conv': 'patch_embed.proj',
        'classifier': 'head',
        'license': 'see https://github.com/wangf3014/ViT-5',
    }
    for size, (_, sides, published) in VARIANTS.items()
    for side in sides
}


class ViT5Classifier(ViT5):
    """The backbone with the final norm and a linear classifier, under timm's interface.

    Pictures of any size are taken; positions are interpolated to the grid of the weights.

    Args:
        arch: 'ti', 's', 'b', 'l', 'xl' or a dict of embed_dims, depth and num_heads.
        pretrain_img_size: Side in pixels of the pictures that the weights were trained on.
        patch_size: Side of a patch in pixels.
        in_chans: Channels of the picture.
        num_classes: Outputs of the classifier; 0 gives pooled features.
        global_pool: 'token' reads CLS as the reference does, 'avg' the mean of the patches; ''
            keeps all tokens, to each of which the classifier is applied.
        drop_rate: Dropout before the classifier.
        drop_path_rate: Stochastic depth, the same for all blocks.
        init_values: Initial LayerScale.
        dynamic_img_size: Accepted, since libraries built on timm set it; every size works anyway.
        num_registers: Register tokens.

    Attributes:
        pretrained_cfg: From which timm makes the transforms of pictures.
    """

    def __init__(
        self,
        arch: str | dict[str, int] = 'b',
        pretrain_img_size: int = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Literal['', 'token', 'avg'] = 'token',
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        init_values: float = 1e-4,
        dynamic_img_size: bool = True,
        num_registers: int = 4,
    ) -> None:
        super().__init__(
            arch,
            pretrain_img_size,
            patch_size,
            in_chans,
            num_registers,
            out_indices=(-1,),
            drop_path_rate=drop_path_rate,
            layer_scale_init=init_values,
            out_norm=True,
        )
        self.embed_dim = self.num_features = self.head_hidden_size = self.embed_dims
        self.num_prefix_tokens = 1 + self.num_registers
        self.feature_info = [
            {'num_chs': self.embed_dims, 'reduction': patch_size, 'module': f'blocks.{i}'}
            for i in range(len(self.blocks))
        ]
        self.pretrained_cfg = preprocessing(in_chans, pretrain_img_size)
        self.drop_rate = drop_rate
        self.global_pool: str = global_pool
        self.reset_classifier(num_classes, global_pool)

    def reset_classifier(
        self, num_classes: int, global_pool: Literal['', 'token', 'avg'] | None = None
    ) -> None:
        """Replace the classifier, and the pooling if named; 0 classes remove it."""
        if global_pool not in (None, '', 'token', 'avg'):
            raise ValueError(f"global_pool {global_pool!r} must be 'token', 'avg' or ''")
        if global_pool is not None:
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head: nn.Module = nn.Identity()
        if num_classes:
            head = nn.Linear(self.embed_dims, num_classes)
            nn.init.trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
            self.head = head.to(self.pos_embed.device, self.pos_embed.dtype)

    def get_classifier(self) -> nn.Module:
        """The linear classifier, or an identity."""
        return self.head

    def no_weight_decay(self) -> set[str]:
        """Parameters of more than one dimension without weight decay."""
        return {'pos_embed', 'cls_token', 'reg_token'}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns for timm's layer-wise decay: tokens and stem first, then the blocks."""
        return {
            'stem': r'^cls_token|reg_token|pos_embed|patch_embed',
            'blocks': [(r'^blocks\.(\d+)', None), (r'^norm', (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks in the backward pass to save memory."""
        self.with_cp = enable

    def forward_features(self, x: Tensor) -> Tensor:
        """All tokens after the final norm: (B, in_chans, H, W) to (B, 1 + h * w + R, C)."""
        return self.forward_tokens(x)[0][0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (B, num_classes), or pooled features (B, C), of all tokens (B, N, C).

        Without pooling they are (B, N, num_classes) and (B, N, C).
        """
        if self.global_pool == 'avg':
            num_patches = x.shape[1] - self.num_prefix_tokens
            x = TokenLayout((1, num_patches), self.num_registers).patches(x).mean(1)
        elif self.global_pool == 'token':
            x = x[:, 0]  # CLS comes first
        if pre_logits:
            return x
        return self.head(nn.functional.dropout(x, self.drop_rate, self.training))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Logits (B, num_classes) of normalised pictures (B, in_chans, H, W)."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal['NCHW', 'NLC'] = 'NCHW',
        intermediates_only: bool = False,
    ) -> Any:
        """Features of some blocks, as timm's ``forward_intermediates`` gives them.

        Args:
            x: Normalised pictures, (B, in_chans, H, W).
            indices: Block numbers; a number means the last so many, None all.
            return_prefix_tokens: Return pairs of patches and special tokens (CLS, registers).
            norm: Apply the final norm.
            stop_early: Do not run the blocks after the last one asked for.
            output_fmt: Maps (B, C, h, w) or tokens (B, h * w, C).
            intermediates_only: Return the features only, not the final tokens beside them.

        Returns:
            A list of features, or the final tokens and that list.
        """
        if output_fmt not in ('NCHW', 'NLC'):
            raise ValueError(f"output_fmt {output_fmt!r} must be 'NCHW' or 'NLC'")
        take, last = feature_take_indices(len(self.blocks), indices)
        early = stop_early or intermediates_only
        run = sorted({*take, last if early else len(self.blocks) - 1})
        taps, grid = self.forward_blocks(x, run)
        layout = TokenLayout(grid, self.num_registers)
        features: list[Any] = []
        for i, tokens in zip(run, taps, strict=True):
            if i not in take:
                continue
            tokens = self.norm(tokens) if norm else tokens
            spatial = self.to_map(tokens, grid) if output_fmt == 'NCHW' else layout.patches(tokens)
            features.append((spatial, layout.specials(tokens)) if return_prefix_tokens else spatial)
        return features if intermediates_only else (self.norm(taps[-1]), features)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Drop blocks after the last one asked for; returns the block numbers."""
        take, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        self.out_indices = (last,)
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return take

    def load_pretrained(self, checkpoint_path: str, prefix: str = '') -> None:
        """Load a ViT-5 file in any layout, strictly; timm calls this for ``pretrained=True``.

        A classifier of another size than ``num_classes`` and input channels other than 3 are the
        two differences allowed: the classifier stays new, the stem is adapted as timm does.

        Raises:
            CheckpointError: If the file does not fit otherwise; with the account.
        """
        remote = checkpoint_path.startswith(('http://', 'https://'))
        path = download(checkpoint_path) if remote else Path(checkpoint_path)
        content = read_file(path)
        check_grid(unwrap(content)[0].get('pos_embed'), self, path)
        try:
            self.load_state_dict(fit_state_dict(content, self), strict=True)
        except CheckpointError as error:
            raise CheckpointError(f'{path}: {error}') from error


def fit_state_dict(content: Mapping[str, Any], model: ViT5Classifier) -> dict[str, Tensor]:
    """All tensors of a model, from a ViT-5 file but for a classifier of another size.

    Args:
        content: What the file holds, in any known layout.
        model: The model; tensors that may be new are taken from it.

    Raises:
        CheckpointError: If the file does not fit otherwise; with the account.
    """
    state, origin = unwrap(content)
    wanted = model.state_dict()
    head, stem = 'head.weight', 'patch_embed.proj.weight'
    if head in state and head in wanted and len(state[head]) != model.num_classes:
        state = {key: value for key, value in state.items() if not key.startswith('head.')}
    if stem in state and state[stem].shape[1] != wanted[stem].shape[1]:
        state[stem] = adapt_input_conv(wanted[stem].shape[1], state[stem])
    fitting, account = convert({origin: state} if origin else state, wanted)
    new = [key for key in account.missing if key.startswith('head.')]
    account.missing = [key for key in account.missing if key not in new]
    if not account.complete:
        raise CheckpointError(f'the file does not fit {model.arch_name}: {account}')
    print_log(f'{model.arch_name}: {account}; new: {", ".join(new) or "none"}', logger='current')
    return {**wanted, **fitting}


def entrypoint(name: str) -> Callable[..., nn.Module]:
    """The function that ``timm.create_model`` calls for a name such as 'vit5_small_patch16_224'.

    Its ``img_size`` is that of the pictures that timm's transforms make; the model takes any.
    """
    _, size, _, side = name.split('_')

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        out_indices = kwargs.pop('out_indices', 3)
        if img_size := kwargs.pop('img_size', None):
            overlay = kwargs.get('pretrained_cfg_overlay') or {}
            wanted = (3, *to_2tuple(img_size))
            kwargs['pretrained_cfg_overlay'] = {'input_size': wanted, **overlay}
        return build_model_with_cfg(
            ViT5Classifier,
            name,
            pretrained,
            pretrained_filter_fn=fit_state_dict,
            feature_cfg={'out_indices': out_indices, 'feature_cls': 'getter'},
            arch=VARIANTS[size][0],
            pretrain_img_size=int(side),
            **kwargs,
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'ViT-5 {size}, {ARCHS[VARIANTS[size][0]]}, weights of {side} px.'
    return register_model(create)


globals().update({name: entrypoint(name) for name in NAMES})
