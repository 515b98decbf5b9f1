# The ledger's name holds the hash of its cells, so "missing or not" is all that Snakemake has to decide.
rule measure:
    input:
        ancient(PLAN.inputs_of),
    output:
        f"{RESULTS}/ledgers/{{shard}}.json",
    log:
        f"{RESULTS}/logs/measure/{{shard}}.log",
    conda:
        "../../envs/core.yaml"
    resources:
        device=1,
    params:
        campaign=CAMPAIGN,
    message:
        "Measuring {wildcards.shard}"
    shell:
        "kvfrontier measure {params.campaign:q} {wildcards.shard:q} --log {log:q}"
