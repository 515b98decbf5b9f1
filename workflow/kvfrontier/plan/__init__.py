"""From configuration files to cells, fingerprints and shards. Pure: imports no torch, no ray, no snakemake."""
