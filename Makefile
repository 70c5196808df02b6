# Any Python >= 3.10 will do to start with; everything is installed into .venv.
PYTHON ?= python3
DEMO = configs/upernet_vit5_ti_shapes.py
DEMO_DET = configs/mask_rcnn_vit5_ti_shapes.py
RUN = .venv/bin/python
# Threads that wait sleep instead of spinning: without it a second busy program on the machine slows
# training by a factor of ten.
export OMP_WAIT_POLICY ?= PASSIVE

# Test files run side by side; threads of their own would only be in each other's way.
WORKERS ?= 2
test: export OMP_NUM_THREADS ?= 1

# The segmentation demo's backbone, if it was trained.
SEGMENTOR = $(shell cat work_dirs/demo/last_checkpoint 2>/dev/null)
BACKBONE = $(if $(SEGMENTOR),--cfg-options model.backbone.init_cfg.type=Pretrained \
	model.backbone.init_cfg.checkpoint=$(SEGMENTOR))

.PHONY: help demo demo-det test faults lint

help:
	@echo 'make demo   install (no compiling), make the data, train and evaluate $(DEMO)'
	@echo 'make demo-det  the same for $(DEMO_DET), after make test; from the backbone of make demo'
	@echo 'make test   install the rest (compiles the ops of mmcv once) and run the tests'
	@echo 'make faults  kill a training run 30 times, try bad input and several processes; after make test'
	@echo 'make lint   ruff and mypy'
	@echo 'PYTHON=python3.11 chooses the interpreter'

demo:
	@$(PYTHON) tools/bootstrap.py --level seg
	@$(RUN) tools/make_shapes.py --out data/shapes
	$(RUN) tools/train.py $(DEMO) --work-dir work_dirs/demo
	$(RUN) tools/test.py $(DEMO) work_dirs/demo/last_checkpoint
	@echo 'report picture: work_dirs/demo/report.png'

demo-det:
	@$(PYTHON) tools/bootstrap.py --level full
	@$(RUN) tools/make_shapes.py --out data/shapes
	$(RUN) tools/train.py $(DEMO_DET) --work-dir work_dirs/demo_det $(BACKBONE)
	$(RUN) tools/test.py $(DEMO_DET) work_dirs/demo_det/last_checkpoint
	@echo 'report picture: work_dirs/demo_det/report.png'

test:
	@$(PYTHON) tools/bootstrap.py --level full
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile

faults:
	@$(PYTHON) tools/bootstrap.py --level full
	$(RUN) tests/faults.py --kills 30

lint:
	@$(PYTHON) tools/bootstrap.py --level lint
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
