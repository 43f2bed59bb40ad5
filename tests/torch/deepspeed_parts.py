"""Worker of test_exports.py: a PipelineModule of so many layers cut by exported parts, as schedule/export/export_deepspeed.c
says; each process prints which layers its stage has. deepspeed_parts.py FILE LAYERS"""

import importlib
import json
import sys

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule


class PlannedModule(PipelineModule):
    def _partition_layers(self, method=None):
        with open(sys.argv[1], encoding="utf-8") as file:
            self.parts = json.load(file)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def main():
    # A minute of compiling for a collective that is not called.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo")
    layers = [LayerSpec(torch.nn.Linear, 4, 4) for _ in range(int(sys.argv[2]))]
    module = PlannedModule(layers=layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    built = len(module.forward_funcs)
    if built != module._local_stop - module._local_start:
        sys.exit(f"built {built} layers")
    # One write with its newline: both processes write into one pipe.
    sys.stdout.write(f"stage {module.stage_id}: {module._local_start} to {module._local_stop}\n")
    sys.stdout.flush()
    torch.distributed.destroy_process_group()


main()
