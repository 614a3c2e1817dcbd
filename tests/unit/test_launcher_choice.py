"""Which launcher a script gets when the user names none."""

from __future__ import annotations

import time

import pytest

from phalanx.cli import run
from phalanx.code import code_tree
from phalanx.errors import SpecError
from phalanx.jobs.launcher_choice import Choice, choose
from phalanx.jobs.own_imports import left_out, read_script

SCRIPTS = {
    "import torch.distributed as dist\ndist.init_process_group()": "torchrun",
    "from torch.nn.parallel import DistributedDataParallel as DDP": "torchrun",
    "import torch\ndef main():\n    torch.distributed.barrier()": "torchrun",
    "if True:\n    import torch.distributed": "torchrun",
    "from accelerate import Accelerator": "torchrun",
    "import lightning as L": "torchrun",
    "from transformers import Trainer, TrainingArguments": "torchrun",
    "import transformers\ntransformers.Seq2SeqTrainer()": "torchrun",
    "from transformers import AutoModel": "mpi",
    "from trl import SFTTrainer": "torchrun",
    "from composer import Trainer": "torchrun",
    "import ignite.distributed as idist": "torchrun",
    "import colossalai": "torchrun",
    "from megatron.core import parallel_state": "torchrun",
    "from mxnet import kv\nkv.create('dist_sync')": "dmlc",
    "import mxnet as mx\nmx.kvstore.create('dist_async')": "dmlc",
    "import mxnet as mx\nmx.nd.zeros(3)": "mpi",
    "import tensorflow as tf\ntf.estimator.train_and_evaluate": "tensorflow",
    "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    hvd = None\nimport torch.distributed": "torchrun",
    "import torch.distributed\ntry:\n    import deepspeed\nexcept Exception:\n    deepspeed = None": "torchrun",
    "import sys\nfrom torch import distributed\nif '--ds' in sys.argv:\n    import deepspeed": "torchrun",
    "if TYPE_CHECKING:\n    from mpi4py import MPI\nelse:\n    MPI = 0\nimport accelerate": "torchrun",
    "try:\n    import deepspeed\nexcept ImportError:\n    raise SystemExit('pip install deepspeed')": "deepspeed",
    "import torch.distributed\nif __name__ == '__main__':\n    import deepspeed": "deepspeed",
    "import torch.distributed\ntry:\n    import deepspeed\nfinally:\n    pass": "deepspeed",
    "import torch\nprint(torch.cuda.device_count())": "mpi",
    "from mpi4py import MPI\nimport torch.distributed": "mpi",
    "import horovod.torch as hvd": "mpi",
    "import deepspeed\nimport torch.distributed": "deepspeed",
    "import jax\njax.distributed.initialize()": "jax",
    "import jax.numpy as jnp": "mpi",
    "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()": "tensorflow",
    "import tensorflow as tf\ntf.keras": "mpi",
    "from ray import tune": "ray",
    "import ray\nray.init()\nimport torch.distributed": "ray",
    "from pyspark.sql import SparkSession": "spark",
    "import accelerate_me": "mpi",
    "raise SystemExit": "mpi",
    "def broken(:": "mpi",
}


@pytest.mark.parametrize(("text", "launcher"), SCRIPTS.items(), ids=range(len(SCRIPTS)))
def test_what_a_script_uses_decides(tmp_path, text, launcher):
    (tmp_path / "train.py").write_text(text)
    assert choose(tmp_path, ["python", "train.py"]).launcher == launcher


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py"],
        ["python3.11", "-u", "train.py", "--epochs", "5"],
        ["python", "-m", "train"],
        ["train.py"],
        ["./train.py"],
        ["env", "LR=1", "python", "train.py"],
        ["timeout", "1h", "nice", "python3", "-u", "train.py"],
        ["stdbuf", "-oL", "python", "-m", "train"],
        ["nsys", "profile", "-o", "x", "python", "train.py"],
        ["uv", "run", "train.py"],
        ["python", "-m", "cProfile", "-o", "x", "train.py"],
        ["bash", "-c", "cd . && LR=1 python train.py --epochs 3; echo done"],
        ["sh", "-ec", "exec python3 './train.py'"],
        ["bash", "run.sh", "--epochs", "3"],
        ["./run.sh"],
    ],
)
def test_every_way_to_run_a_script(tmp_path, command):
    (tmp_path / "train.py").write_text("import torch.distributed")
    (tmp_path / "run.sh").write_text('#!/bin/bash\n# python old.py\nset -e\nsource env\npython -u train.py "$@"\n')
    (tmp_path / "old.py").write_text("import jax\njax.distributed.initialize()")
    assert choose(tmp_path, command).launcher == "torchrun"


@pytest.mark.parametrize(
    "command", [["sh", "train.py"], ["cat", "train.py"], ["python", "-c", "import torch.distributed"], ["true"], []]
)
def test_other_programs_get_the_default(tmp_path, command):
    (tmp_path / "train.py").write_text("import torch.distributed")
    assert choose(tmp_path, command) == Choice("mpi")


def test_modules_of_the_directory_count_too(tmp_path):
    (tmp_path / "src/core").mkdir(parents=True)
    (tmp_path / "src/train.py").write_text("from core import loop")
    (tmp_path / "src/core/__init__.py").write_text("")
    (tmp_path / "src/core/loop.py").write_text("import core.loop\nfrom torch import distributed")
    assert choose(tmp_path, ["python", "src/train.py"]) == Choice("torchrun", "src/core/loop.py", "torch.distributed")


def test_nothing_outside_of_the_directory_is_read(tmp_path):
    (tmp_path / "outside.py").write_text("import torch.distributed")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").symlink_to("../outside.py")
    for path in ("train.py", "../outside.py", str(tmp_path / "outside.py")):
        assert choose(tmp_path / "code", ["python", path]) == Choice("mpi")


HOSTILE = {
    "long chains": "import a\n" + ("a" + ".b" * 900 + "\n") * 20,
    "a long name": f"import {'.'.join('b' * 900)} as a\n" + "a.c\n" * 2_000,
    "many names": f"import {', '.join(f'a{number}' for number in range(5_000))}\n",
    "deep calls": "x" + "()" * 50_000,
    "many conditions": "if a:\n    import b\n" + "elif a:\n    import b\n" * 400,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_script_makes_reading_its_imports_long(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    (tmp_path / ".gitignore").write_text("data\n")
    (tmp_path / "data").mkdir()
    began_s = time.process_time()
    assert choose(tmp_path, ["python", "train.py"]).launcher == "mpi"
    assert left_out(code_tree.scan(tmp_path), ("python", "train.py")) == {}
    assert time.process_time() - began_s < 2


SHELL = {
    "assignments": "a=( " * 16_000,
    "empty lines": "\n" * 65_000,
    "blanks": " " * 65_000,
    "pipes": "| " * 32_000,
    "a large one": "python t.py\n" * 1_000_000,
    "scripts": "python " + "a.py " * 13_000,
}


@pytest.mark.parametrize("text", SHELL.values(), ids=SHELL)
def test_no_shell_script_makes_reading_it_long(tmp_path, text):
    (tmp_path / "run.sh").write_text(text)
    began_s = time.process_time()
    assert choose(tmp_path, ["sh", "run.sh"]).launcher == "mpi"
    with pytest.raises(SpecError):  # there is no such file of a cluster: all that reads the script comes before
        run.command.main(
            ["--directory", str(tmp_path), "--file", str(tmp_path / "none"), "--", "sh", "run.sh"],
            standalone_mode=False,
        )
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize("between", [".", " .\t", "\\\n.", ".\\\r\n", ".é\f."], ids=range(5))
def test_a_name_with_which_the_parser_would_take_all_memory_is_not_parsed(tmp_path, between):
    """It keeps each beginning of the name: of 200,000 words 40 GB, and tries that for minutes."""
    (tmp_path / "train.py").write_text(f"import torch.distributed, {between.join('b' * 2000)}\n", newline="")
    with pytest.raises(ValueError, match="too many words"):
        read_script(tmp_path / "train.py", 1 << 20, tmp_path)
    assert choose(tmp_path, ["python", "train.py"]).launcher == "mpi"
    (tmp_path / "train.py").write_text("import torch.distributed\n" + "import os.path\n" * 2000)
    assert choose(tmp_path, ["python", "train.py"]).launcher == "torchrun"
