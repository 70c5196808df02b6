# Any Python >= 3.10 will do to start with; everything is installed into .venv.
PYTHON ?= python3
DEMO = configs/upernet_vit5_ti_shapes.py
RUN = .venv/bin/python
# Threads that wait sleep instead of spinning: without it a second busy program on the machine slows
# training by a factor of ten.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo test lint

help:
	@echo 'make demo   install (no compiling), make the data, train and evaluate $(DEMO)'
	@echo 'make test   install the rest (compiles the ops of mmcv once) and run the tests'
	@echo 'make lint   ruff and mypy'
	@echo 'PYTHON=python3.11 chooses the interpreter'

demo:
	@$(PYTHON) tools/bootstrap.py --level seg
	@$(RUN) tools/make_shapes.py --out data/shapes
	$(RUN) tools/train.py $(DEMO) --work-dir work_dirs/demo
	$(RUN) tools/test.py $(DEMO) work_dirs/demo/last_checkpoint
	@echo 'report picture: work_dirs/demo/report.png'

test:
	@$(PYTHON) tools/bootstrap.py --level full
	$(RUN) -m pytest

lint:
	@$(PYTHON) tools/bootstrap.py --level lint
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
