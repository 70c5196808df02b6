"""mmdetection's RoI heads, as ONNX operators around their layers; see ``detection_rules``.

N is the number of objects in all pictures.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import OpBuilder

from .detection_checks import stages
from .detection_parts import mark, splice, trace
from .detection_rules import NOTHING, apart, best, decode, filled, pool, suppress

UNLIMITED = 2**31 - 1


class Objects(NamedTuple):
    """What was found in all pictures, picture by picture, the most certain first.

    Attributes:
        boxes: (N, 4).
        scores: (N,).
        labels: (N,).
        picture: Number in the batch, (N,).
    """

    boxes: ir.Value
    scores: ir.Value
    labels: ir.Value
    picture: ir.Value


class RoIHeads:
    """Adds box heads and mask heads to a graph.

    Args:
        op: Builder of the graph.
        heads: The RoI head of a detector.
        maps: Levels of the pyramid, (B, channels, h, w).
        limit: Width and height of the picture without padding, (2,).
        opset: Version of the standard operators.
    """

    def __init__(
        self, op: OpBuilder, heads: Any, maps: Sequence[ir.Value], limit: ir.Value, opset: int
    ) -> None:
        self.op = op
        self.heads = heads
        self.maps = maps
        self.limit = limit
        self.opset = opset

    def _apply(
        self, kind: Literal['bbox', 'mask'], stage: int, boxes: ir.Value, pictures: ir.Value
    ) -> list[ir.Value]:
        """Outputs of a head for boxes (R, 4) in pictures (R,)."""
        extractor = stages(getattr(self.heads, f'{kind}_roi_extractor'))[stage]
        head = stages(getattr(self.heads, f'{kind}_head'))[stage]
        features = pool(self.op, extractor, self.maps, boxes, pictures)
        sides = extractor.roi_layers[0].output_size
        part = trace(head, torch.zeros(3, extractor.out_channels, *sides), [0], self.opset)
        outputs = splice(self.op, part, features, f'{kind}_head_{stage}')
        mark(f'{kind}/{stage}/out', outputs)
        mark(f'{kind}/{stage}/boxes', [self.op.Identity(boxes)])
        return outputs

    def _regress(self, boxes: ir.Value, pictures: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Scores (R, classes) and boxes (R, classes, 4) of proposals, refined by every stage."""
        op, heads = self.op, stages(self.heads.bbox_head)
        classes = heads[-1].num_classes
        outputs = []
        for stage, head in enumerate(heads):
            logits, deltas = self._apply('bbox', stage, boxes, pictures)
            outputs.append(logits)
            deltas = op.Reshape(deltas, [-1, 1 if head.reg_class_agnostic else classes, 4])
            if head is heads[-1]:
                priors = op.Unsqueeze(boxes, [1])  # (R, 1, 4)
                boxes = decode(op, head.bbox_coder, priors, deltas, self.limit)
            elif head.reg_class_agnostic:
                boxes = decode(op, head.bbox_coder, boxes, op.Squeeze(deltas, [1]), self.limit)
            else:
                likely = op.ArgMax(op.Slice(logits, [0], [classes], [1]), axis=1)  # (R, 1)
                deltas = op.GatherND(deltas, likely, batch_dims=1)  # (R, 4)
                boxes = decode(op, head.bbox_coder, boxes, deltas, self.limit)
        scores = op.Softmax(op.Mean(*outputs), axis=1)
        scores = op.Slice(scores, [0], [classes], [1])  # the last is the background
        return scores, op.Expand(boxes, [1, classes, 4])

    def detect(self, boxes: ir.Value, slots: ir.Value, table: Sequence[ir.Value]) -> Objects:
        """Objects among proposals.

        Args:
            boxes: Proposals of all pictures, (R, 4).
            slots: Picture and rank of each, (R, 2).
            table: Number of pictures B and of ranks P, (1,) each.
        """
        op, cfg = self.op, self.heads.test_cfg
        classes = stages(self.heads.bbox_head)[-1].num_classes
        most = cfg.max_per_img if cfg.max_per_img > 0 else UNLIMITED
        scores, boxes = self._regress(boxes, op.Squeeze(op.Gather(slots, [0], axis=1), [1]))
        counts = op.Greater(scores, float(cfg.score_thr))
        mark('counts', [counts])
        scores = op.Where(counts, scores, NOTHING)
        shape = op.Concat(*table, [classes], axis=0)
        scores = op.ScatterND(filled(op, NOTHING, shape), slots, scores)  # (B, P, classes)
        shape = op.Concat(shape, [4], axis=0)
        boxes = op.ScatterND(filled(op, 0.0, shape), slots, boxes)  # (B, P, classes, 4)
        groups = op.Constant(value=ir.tensor(np.arange(classes, dtype=np.float32)[:, None]))
        moved = apart(op, boxes, scores, groups, [1, 2, 3])
        # Each class has boxes of its own: every class of every picture is a batch of one group.
        kept = suppress(
            op,
            op.Reshape(
                op.Transpose(moved, perm=[0, 2, 1, 3]), op.Concat([-1], table[1], [4], axis=0)
            ),
            op.Reshape(op.Transpose(scores, perm=[0, 2, 1]), op.Concat([-1, 1], table[1], axis=0)),
            cfg.nms.iou_threshold,
            most,
        )
        batch, rank = op.Gather(kept, [0], axis=1), op.Gather(kept, [2], axis=1)  # (n, 1)
        number = op.Add(op.Mul(rank, [classes]), op.Mod(batch, [classes]))
        kept = op.Concat(op.Div(batch, [classes]), number, axis=1)
        found = best(op, op.Reshape(scores, [0, -1]), kept, most)
        boxes = op.GatherND(op.Reshape(boxes, [0, -1, 4]), found.places)
        picture, number = (op.Squeeze(op.Gather(found.places, [i], axis=1), [1]) for i in (0, 1))
        return Objects(boxes, found.scores, op.Mod(number, [classes]), picture)

    def masks(self, objects: Objects) -> ir.Value:
        """Probabilities of the objects' classes inside their boxes, (N, side, side)."""
        op, masks = self.op, []
        for stage, head in enumerate(stages(self.heads.mask_head)):
            (logits,) = self._apply('mask', stage, objects.boxes, objects.picture)
            if head.class_agnostic:
                logits = op.Squeeze(logits, [1])
            else:
                logits = op.GatherND(logits, op.Unsqueeze(objects.labels, [1]), batch_dims=1)
            masks.append(op.Sigmoid(logits))
        return op.Mean(*masks)
