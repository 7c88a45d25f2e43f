{#- A model that is a view of persist. Its query is kept by the location; DuckDB has a view of the same name over what the
    view held at its upper after the refresh, for tests and for models of other kinds. -#}
{% materialization persist_view, adapter="duckdb" %}
  {%- set target = this.incorporate(type="view") -%}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {%- set file = "target/persist/" ~ this.identifier ~ ".parquet" -%}
  {%- do adapter.store_relation("persist", target, [], file, "parquet",
        {"sql": compiled_code, "key": config.get("key"), "start": config.get("start")}) -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- if existing is not none and existing.type != "view" -%}{%- do drop_relation_if_exists(existing) -%}{%- endif -%}
  {% call statement("main") -%}
    create or replace view {{ target }} as select * from read_parquet('{{ file }}')
  {%- endcall %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {% do persist_docs(target, model) %}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({"relations": [target]}) }}
{% endmaterialization %}

{#- In a persist_view, tables are collections of the location, which have no database. -#}
{% macro ref() %}
  {%- set relation = builtins.ref(*varargs, **kwargs) -%}
  {%- if execute and model.config.materialized == "persist_view" -%}
    {%- do return(relation.include(database=false, schema=false)) -%}
  {%- endif -%}
  {%- do return(relation) -%}
{% endmacro %}

{% macro source(source_name, table_name) %}
  {%- set relation = builtins.source(source_name, table_name) -%}
  {%- if execute and model.config.materialized == "persist_view" -%}
    {%- do return(relation.include(database=false, schema=false)) -%}
  {%- endif -%}
  {%- do return(relation) -%}
{% endmacro %}
