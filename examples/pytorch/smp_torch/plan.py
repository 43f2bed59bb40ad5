"""A plan of smp-partition, from `--export json:FILE` or its YAML file."""

import json


class Plan:
    """stages: lists of operator names; recompute: the set of each; ranks: pipeline rank of each; orders: actions of each
    pipeline rank, (stage, letter, micro-batch); data: as `--export json` has it"""

    def __init__(self, data):
        self.data = data
        parallel = data["parallel"]
        if parallel.get("tensor", 1) > 1:
            raise ValueError(f"the plan splits operators over groups of {parallel['tensor']} devices (tensor), which is not done "
                             "here: make one with --tensor 1")
        self.pipeline = parallel["pipeline"]
        self.ddp = parallel.get("ddp", 1)
        if data["batch"].get("gradient_blocks", self.ddp) % self.ddp:
            raise ValueError(f"{self.ddp} replicas have {data['batch']['gradient_blocks']} gradient blocks between them, here each has as "
                             "many micro-batches as the others: make a plan with a --ddp that divides --gradient-blocks")
        self.chunks = parallel.get("chunks", 1)
        self.shard = parallel.get("shard", 1)
        self.shard_what = parallel.get("shard_what", "optimizer")
        self.prefetch = parallel.get("prefetch", 1)
        self.placement = parallel.get("placement", "cluster")
        self.microbatches = data["batch"]["microbatches"]
        self.microbatch_size = data["batch"]["microbatch_size"]
        self.predicted = data.get("predicted") or {}
        self.stages = [s["ops"] for s in data["stages"]]
        self.ranks = [s["rank"] for s in data["stages"]]
        self.recompute = [_recomputed(s) for s in data["stages"]]
        self.orders = [self._order(rank, text) for rank, text in enumerate(data["programs"])]

    def _order(self, rank, text):
        own = [s for s, r in enumerate(self.ranks) if r == rank]
        order = []
        for action in text.split():
            if action[0] in "FBIW":
                microbatch, _, chunk = action[1:].partition(".")
                order.append((own[int(chunk or 0)], action[0], int(microbatch)))
        return order

    @property
    def most_gathered(self):
        """Of how many stages a rank has gathered weights at a time."""
        return 1 + self.prefetch if self.shard > 1 and self.shard_what == "weights" else len(self.stages)

    @property
    def splits_backward(self):
        return any(kind in "IW" for order in self.orders for _, kind, _ in order)

    def device(self, replica, rank):
        """The process that runs a pipeline rank of a replica."""
        if isinstance(self.placement, list):
            return self.placement[replica * self.pipeline + rank]
        if self.placement == "spread":
            return rank * self.ddp + replica
        return replica * self.pipeline + rank


def _recomputed(stage):
    again = stage.get("recompute", False)
    return set(stage["ops"]) if again is True else set(again or [])


def read_plan(plan):
    """plan: a Plan, the object of `--export json`, or the path of that file or of a plan's YAML."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, dict):
        return Plan(plan)
    with open(plan, encoding="utf-8") as file:
        text = file.read()
    if text.lstrip().startswith("{"):
        return Plan(json.loads(text))
    try:
        import yaml
    except ImportError as error:
        raise ValueError(f"{plan}: a plan in YAML needs PyYAML: pip install pyyaml, or give --export json:FILE to "
                         "smp-partition and take that file") from error
    return Plan(yaml.safe_load(text))
