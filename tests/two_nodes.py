"""A Ray cluster of two nodes with two CPUs each, on this machine. Run in a process of its own, by any Python with Ray.

`python two_nodes.py FOLDER` prints the address and ends with its standard input; a line on that kills the second node.
"""

import os
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 * 2**20}


def main() -> None:
    # Ray notes the address in its default folder and fails where no Ray has ever made that.
    os.environ["RAY_TMPDIR"] = sys.argv[1]
    Path(sys.argv[1], "ray").mkdir()
    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE, "temp_dir": sys.argv[1], "include_dashboard": False}
    )
    second = cluster.add_node(**NODE)
    cluster.wait_for_nodes(60)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        sys.stdout.write("removed\n")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
