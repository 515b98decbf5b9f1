rule fetch_model:
    output:
        f"{RESULTS}/inputs/model/{{receipt}}",
    log:
        f"{RESULTS}/logs/fetch_model/{{receipt}}.log",
    conda:
        "../../envs/core.yaml"
    resources:
        network=1,
    params:
        name=lambda wildcards: PLAN.received(wildcards.receipt),
    message:
        "Fetching model {params.name}"
    shell:
        "kvfrontier fetch model --receipt {output:q} -- {params.name:q} 2>&1 | tee {log:q}"


rule fetch_data:
    output:
        f"{RESULTS}/inputs/data/{{receipt}}",
    log:
        f"{RESULTS}/logs/fetch_data/{{receipt}}.log",
    conda:
        "../../envs/core.yaml"
    resources:
        network=1,
    params:
        name=lambda wildcards: PLAN.received(wildcards.receipt),
    message:
        "Fetching data {params.name}"
    shell:
        "kvfrontier fetch data --receipt {output:q} -- {params.name:q} 2>&1 | tee {log:q}"
