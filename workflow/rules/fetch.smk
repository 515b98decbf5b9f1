rule fetch_model:
    output:
        f"{RESULTS}/inputs/model/{{model}}.json",
    log:
        f"{RESULTS}/logs/fetch_model/{{model}}.log",
    conda:
        "../../envs/core.yaml"
    resources:
        network=1,
    params:
        name=lambda wildcards: PLAN.decoded(wildcards.model),
    message:
        "Fetching model {params.name}"
    shell:
        "kvfrontier fetch model {params.name:q} --receipt {output:q} 2>&1 | tee {log:q}"


rule fetch_data:
    output:
        f"{RESULTS}/inputs/data/{{data}}.json",
    log:
        f"{RESULTS}/logs/fetch_data/{{data}}.log",
    conda:
        "../../envs/core.yaml"
    resources:
        network=1,
    message:
        "Fetching data {wildcards.data}"
    shell:
        "kvfrontier fetch data {wildcards.data:q} --receipt {output:q} 2>&1 | tee {log:q}"
