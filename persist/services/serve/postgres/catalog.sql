-- The tables and functions of Postgres's catalogs, for DuckDB. `catalog.py` sets the variables, and fills the tables
-- namespaces, relations, attributes, keys, types and arrays of the schema hidden. Tables and columns are those that
-- psql, drivers and tools name. Tables without rows are at the end.

CREATE TYPE pg.oid AS BIGINT;
CREATE TYPE pg.xid AS BIGINT;
CREATE TYPE pg.regclass AS BIGINT;
CREATE TYPE pg.regtype AS BIGINT;
CREATE TYPE pg.regproc AS VARCHAR;
CREATE TYPE pg.regnamespace AS BIGINT;
CREATE TYPE pg.regrole AS BIGINT;
CREATE TYPE pg.name AS VARCHAR;
CREATE TYPE pg.char AS VARCHAR;
CREATE TYPE pg.cstring AS VARCHAR;
CREATE TYPE pg.aclitem AS VARCHAR;
CREATE TYPE pg.int2vector AS INTEGER[];
CREATE TYPE pg.oidvector AS BIGINT[];
CREATE TYPE pg.anyarray AS VARCHAR[];
CREATE TYPE info.sql_identifier AS VARCHAR;
CREATE TYPE info.character_data AS VARCHAR;
CREATE TYPE info.yes_or_no AS VARCHAR;
CREATE TYPE info.cardinal_number AS INTEGER;

CREATE MACRO version() AS getvariable('pg_version');
CREATE MACRO pg.version() AS getvariable('pg_version');
CREATE MACRO pg.current_database() AS getvariable('pg_database');
CREATE MACRO pg.current_catalog() AS getvariable('pg_database');
CREATE MACRO pg.current_schema() AS 'main';
CREATE MACRO pg.current_schemas(implicit) AS CASE WHEN implicit THEN ['pg_catalog', 'main'] ELSE ['main'] END;
CREATE MACRO pg.set_config(setting_name, new_value, is_local) AS
    CASE WHEN lower(setting_name) LIKE 'persist.%' THEN error('set it by SET') ELSE new_value END;
CREATE MACRO pg.pg_backend_pid() AS getvariable('pg_pid');
CREATE MACRO pg.pg_is_in_recovery() AS false;
CREATE MACRO pg.pg_is_wal_replay_paused() AS false;
CREATE MACRO pg.txid_current() AS 1::BIGINT;
CREATE MACRO pg.txid_current_if_assigned() AS NULL::BIGINT;
CREATE MACRO pg.pg_current_xact_id_if_assigned() AS NULL::VARCHAR;
CREATE MACRO pg.pg_advisory_unlock_all() AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_userbyid(role) AS getvariable('pg_user');
CREATE MACRO pg.pg_encoding_to_char(encoding) AS 'UTF8';
CREATE MACRO pg.pg_char_to_encoding(encoding) AS 6;
CREATE MACRO pg.quote_ident(part) AS
    CASE WHEN regexp_full_match(part, '[a-z_][a-z0-9_]*') THEN part ELSE '"' || replace(part, '"', '""') || '"' END;
CREATE MACRO pg.quote_literal(part) AS '''' || replace(part, '''', '''''') || '''';
CREATE MACRO pg.parse_ident(part) AS string_split(replace(part, '"', ''), '.');
CREATE MACRO pg.format(template, a) AS printf(replace(template, '%I', '%s'), a),
    (template, a, b) AS printf(replace(template, '%I', '%s'), a, b);
CREATE MACRO info._pg_expandarray(list) AS unnest(list_transform(list, lambda item, number: {'x': item, 'n': number}));
CREATE MACRO pg.pg_get_keywords() AS TABLE
    SELECT keyword_name AS word, left(keyword_category, 1) AS catcode, true AS barelabel FROM duckdb_keywords();
CREATE MACRO pg.format_type(type_oid, modifier) AS (
    SELECT any_value(
        CASE WHEN type_oid = 1700 AND modifier >= 4
            THEN 'numeric(' || ((modifier::BIGINT - 4) >> 16) || ',' || ((modifier::BIGINT - 4) & 65535) || ')'
            ELSE t.shown END)
    FROM (
        SELECT oid, shown FROM hidden.types
        UNION ALL SELECT a.oid, i.shown || '[]' FROM hidden.arrays a JOIN hidden.types i ON i.oid = a.item) t
    WHERE t.oid = type_oid);
CREATE MACRO pg.obj_description(object) AS NULL::VARCHAR, (object, catalog) AS NULL::VARCHAR;
CREATE MACRO pg.col_description(object, number) AS NULL::VARCHAR;
CREATE MACRO pg.shobj_description(object, catalog) AS NULL::VARCHAR;
CREATE MACRO pg.pg_table_is_visible(relation) AS (
    SELECT coalesce(any_value(r.relnamespace) = 2200, false) FROM hidden.relations r WHERE r.oid = relation);
CREATE MACRO pg.pg_type_is_visible(type_oid) AS true;
CREATE MACRO pg.pg_function_is_visible(function) AS true;
CREATE MACRO pg.pg_get_expr(expression, relation) AS NULL::VARCHAR, (expression, relation, pretty) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_viewdef(view_oid) AS '', (view_oid, pretty) AS '';
CREATE MACRO pg.pg_get_ruledef(rule) AS NULL::VARCHAR, (rule, pretty) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_partkeydef(relation) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_function_result(function) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_function_arguments(function) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_function_identity_arguments(function) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_functiondef(function) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_triggerdef(trigger) AS NULL::VARCHAR, (trigger, pretty) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_statisticsobjdef_columns(statistics) AS NULL::VARCHAR;
CREATE MACRO pg.pg_get_serial_sequence(relation, col) AS NULL::VARCHAR;
CREATE MACRO pg.pg_sequence_last_value(sequence) AS NULL::BIGINT;
CREATE MACRO pg.pg_get_constraintdef(key) AS (
        SELECT any_value('PRIMARY KEY (' || k.columns || ')') FROM hidden.keys k WHERE k.oid = key),
    (key, pretty) AS (
        SELECT any_value('PRIMARY KEY (' || k.columns || ')') FROM hidden.keys k WHERE k.oid = key);
CREATE MACRO pg.index_text(name, relation, columns) AS
    'CREATE UNIQUE INDEX ' || name || ' ON ' || relation || ' USING btree (' || columns || ')';
CREATE MACRO pg.pg_get_indexdef(key) AS (
        SELECT any_value(pg.index_text(k.conname, r.relname, k.columns))
        FROM hidden.keys k JOIN hidden.relations r ON r.oid = k.conrelid WHERE k.oid = key),
    (key, number, pretty) AS (
        SELECT any_value(CASE WHEN number = 0 THEN pg.index_text(k.conname, r.relname, k.columns) ELSE a.attname END)
        FROM hidden.keys k JOIN hidden.relations r ON r.oid = k.conrelid
        LEFT JOIN hidden.attributes a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[number] WHERE k.oid = key);
CREATE MACRO pg.pg_relation_size(relation) AS 0::BIGINT, (relation, fork) AS 0::BIGINT;
CREATE MACRO pg.pg_table_size(relation) AS 0::BIGINT;
CREATE MACRO pg.pg_indexes_size(relation) AS 0::BIGINT;
CREATE MACRO pg.pg_total_relation_size(relation) AS 0::BIGINT;
CREATE MACRO pg.pg_database_size(name) AS 0::BIGINT;
CREATE MACRO pg.pg_tablespace_location(tablespace) AS '';
CREATE MACRO pg.pg_relation_is_publishable(relation) AS false;
CREATE MACRO pg.pg_relation_is_updatable(relation, triggers) AS 28;
CREATE MACRO pg.pg_column_is_updatable(relation, number, triggers) AS true;
CREATE MACRO pg.pg_stat_get_numscans(relation) AS 0::BIGINT;
CREATE MACRO pg.row_security_active(relation) AS false;
CREATE MACRO pg.has_table_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO pg.has_schema_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO pg.has_database_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO pg.has_column_privilege(a, b, c) AS true, (a, b, c, d) AS true;
CREATE MACRO pg.has_any_column_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO pg.has_function_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO pg.has_sequence_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO pg.array_lower(list, dimension) AS CASE WHEN len(list) > 0 THEN 1 END;
CREATE MACRO pg.array_upper(list, dimension) AS nullif(len(list), 0);

CREATE TABLE pg.system_relations AS
    SELECT * FROM (VALUES (1247::BIGINT, 'pg_type'), (1249, 'pg_attribute'), (1259, 'pg_class'), (2606, 'pg_constraint'),
        (2610, 'pg_index'), (2615, 'pg_namespace'), (1262, 'pg_database'), (1255, 'pg_proc'), (2604, 'pg_attrdef'),
        (2609, 'pg_description')) AS s(oid, relname);
CREATE MACRO pg.regclass_oid(relation) AS coalesce(
    try_cast(relation AS BIGINT),
    (SELECT any_value(r.oid) FROM hidden.relations r JOIN hidden.namespaces n ON n.oid = r.relnamespace
        WHERE replace(relation, '"', '') IN (CASE WHEN n.oid = 2200 THEN r.relname END, n.nspname || '.' || r.relname)),
    (SELECT any_value(s.oid) FROM pg.system_relations s WHERE relation IN (s.relname, 'pg_catalog.' || s.relname)));
CREATE MACRO pg.to_regclass(relation) AS pg.regclass_oid(relation);
CREATE MACRO pg.regclass_name(relation) AS coalesce(
    (SELECT any_value(CASE WHEN n.oid = 2200 THEN '' ELSE pg.quote_ident(n.nspname) || '.' END || pg.quote_ident(r.relname))
        FROM hidden.relations r JOIN hidden.namespaces n ON n.oid = r.relnamespace WHERE r.oid = relation),
    (SELECT any_value(s.relname) FROM pg.system_relations s WHERE s.oid = relation),
    CASE WHEN relation = 0 THEN '-' ELSE relation::VARCHAR END);
CREATE MACRO pg.regtype_oid(type_name) AS (
    SELECT any_value(t.oid) FROM hidden.types t WHERE lower(type_name) IN (t.typname, t.shown));
CREATE MACRO pg.to_regtype(type_name) AS pg.regtype_oid(type_name);
CREATE MACRO pg.regtype_name(type_oid) AS coalesce(pg.format_type(type_oid, NULL), '-');
CREATE MACRO pg.regnamespace_oid(schema_name) AS (
    SELECT any_value(n.oid) FROM hidden.namespaces n WHERE n.nspname = replace(schema_name, '"', ''));
CREATE MACRO pg.regnamespace_name(schema_oid) AS (
    SELECT any_value(n.nspname) FROM hidden.namespaces n WHERE n.oid = schema_oid);
CREATE MACRO pg.regproc_oid(function) AS replace(function, 'pg_catalog.', '');

CREATE VIEW pg.pg_namespace AS
    SELECT oid, nspname, 10::BIGINT AS nspowner, NULL::VARCHAR[] AS nspacl FROM hidden.namespaces;
CREATE VIEW pg.pg_class AS
    SELECT oid, relname, relnamespace, 0::BIGINT AS reltype, 0::BIGINT AS reloftype, 10::BIGINT AS relowner,
        CASE relkind WHEN 'r' THEN 2 WHEN 'i' THEN 403 ELSE 0 END::BIGINT AS relam, oid AS relfilenode,
        0::BIGINT AS reltablespace, 0 AS relpages, -1::REAL AS reltuples, 0 AS relallvisible, 0::BIGINT AS reltoastrelid,
        relhasindex, false AS relisshared, 'p' AS relpersistence, relkind, relnatts, 0 AS relchecks,
        relkind = 'v' AS relhasrules, false AS relhastriggers, false AS relhassubclass, false AS relrowsecurity,
        false AS relforcerowsecurity, true AS relispopulated, 'd' AS relreplident, false AS relispartition,
        0::BIGINT AS relrewrite, 0::BIGINT AS relfrozenxid, 0::BIGINT AS relminmxid, false AS relhasoids,
        NULL::VARCHAR[] AS relacl, NULL::VARCHAR[] AS reloptions, NULL::VARCHAR AS relpartbound
    FROM hidden.relations;
CREATE VIEW pg.pg_attribute AS
    SELECT attrelid, attname, atttypid, -1 AS attstattarget, attlen, attnum, 0 AS attndims, -1 AS attcacheoff, atttypmod,
        attlen > 0 AS attbyval, 'i' AS attalign, CASE WHEN attlen < 0 THEN 'x' ELSE 'p' END AS attstorage,
        '' AS attcompression, attnotnull, false AS atthasdef, false AS atthasmissing, '' AS attidentity,
        '' AS attgenerated, false AS attisdropped, true AS attislocal, 0 AS attinhcount,
        CASE WHEN atttypid = 25 THEN 100 ELSE 0 END::BIGINT AS attcollation, NULL::VARCHAR[] AS attacl,
        NULL::VARCHAR[] AS attoptions, NULL::VARCHAR[] AS attfdwoptions, NULL::VARCHAR[] AS attmissingval
    FROM hidden.attributes;
CREATE VIEW pg.type_rows AS
    SELECT s.oid, s.typname, s.typlen, CASE WHEN s.typcategory IN ('P', 'X') THEN 'p' ELSE 'b' END AS typtype,
        s.typcategory, 0::BIGINT AS typelem,
        coalesce((SELECT min(a.oid) FROM hidden.arrays a WHERE a.item = s.oid), 0) AS typarray, s.typname AS io,
        CASE WHEN s.typname IN ('date', 'time', 'timestamp', 'timestamptz', 'interval', 'numeric', 'uuid', 'json', 'jsonb')
            THEN '_' ELSE '' END AS separator
    FROM hidden.types s
    UNION ALL
    SELECT a.oid, '_' || i.typname, -1, 'b', 'A', a.item, 0, 'array', '_'
    FROM hidden.arrays a JOIN hidden.types i ON i.oid = a.item;
CREATE VIEW pg.pg_type AS
    SELECT oid, typname, 11::BIGINT AS typnamespace, 10::BIGINT AS typowner, typlen, typlen > 0 AS typbyval, typtype,
        typcategory, false AS typispreferred, true AS typisdefined, ',' AS typdelim, 0::BIGINT AS typrelid, typelem,
        typarray, io || separator || 'in' AS typinput, io || separator || 'out' AS typoutput,
        io || separator || 'recv' AS typreceive, io || separator || 'send' AS typsend, '-' AS typmodin,
        '-' AS typmodout, '-' AS typanalyze, 'i' AS typalign, 'p' AS typstorage, false AS typnotnull,
        0::BIGINT AS typbasetype, -1 AS typtypmod, 0 AS typndims,
        CASE WHEN typcategory = 'S' THEN 100 ELSE 0 END::BIGINT AS typcollation, 0::BIGINT AS typsubscript,
        NULL::VARCHAR AS typdefault, NULL::VARCHAR AS typdefaultbin, NULL::VARCHAR[] AS typacl
    FROM pg.type_rows;
CREATE VIEW pg.pg_index AS
    SELECT oid AS indexrelid, conrelid AS indrelid, len(conkey)::INTEGER AS indnatts, len(conkey)::INTEGER AS indnkeyatts,
        true AS indisunique, false AS indnullsnotdistinct, true AS indisprimary, false AS indisexclusion,
        true AS indimmediate, false AS indisclustered, true AS indisvalid, false AS indcheckxmin, true AS indisready,
        true AS indislive, false AS indisreplident, conkey AS indkey,
        list_transform(conkey, lambda x: 0::BIGINT) AS indcollation, list_transform(conkey, lambda x: 0::BIGINT) AS indclass,
        list_transform(conkey, lambda x: 0) AS indoption, NULL::VARCHAR AS indexprs, NULL::VARCHAR AS indpred
    FROM hidden.keys;
CREATE VIEW pg.pg_constraint AS
    SELECT oid, conname, connamespace, 'p' AS contype, false AS condeferrable, false AS condeferred, true AS convalidated,
        conrelid, 0::BIGINT AS contypid, oid AS conindid, 0::BIGINT AS conparentid, 0::BIGINT AS confrelid,
        ' ' AS confupdtype, ' ' AS confdeltype, ' ' AS confmatchtype, true AS conislocal, 0 AS coninhcount,
        true AS connoinherit, conkey, NULL::INTEGER[] AS confkey, NULL::BIGINT[] AS conpfeqop,
        NULL::BIGINT[] AS conexclop, NULL::INTEGER[] AS confdelsetcols, NULL::VARCHAR AS conbin
    FROM hidden.keys;
CREATE VIEW pg.pg_database AS
    SELECT 5::BIGINT AS oid, getvariable('pg_database') AS datname, 10::BIGINT AS datdba, 6 AS encoding, 'c' AS datlocprovider,
        false AS datistemplate, true AS datallowconn, -1 AS datconnlimit, 1663::BIGINT AS dattablespace,
        'C.UTF-8' AS datcollate, 'C.UTF-8' AS datctype, NULL::VARCHAR AS daticulocale, NULL::VARCHAR AS datcollversion,
        NULL::VARCHAR[] AS datacl, 0::BIGINT AS datfrozenxid, 0::BIGINT AS datminmxid;
CREATE VIEW pg.pg_roles AS
    SELECT 10::BIGINT AS oid, getvariable('pg_user') AS rolname, false AS rolsuper, true AS rolinherit, false AS rolcreaterole,
        false AS rolcreatedb, true AS rolcanlogin, false AS rolreplication, -1 AS rolconnlimit,
        '********' AS rolpassword, NULL::TIMESTAMPTZ AS rolvaliduntil, false AS rolbypassrls,
        NULL::VARCHAR[] AS rolconfig;
CREATE VIEW pg.pg_user AS
    SELECT getvariable('pg_user') AS usename, 10::BIGINT AS usesysid, false AS usecreatedb, false AS usesuper, false AS userepl,
        false AS usebypassrls, '********' AS passwd, NULL::TIMESTAMPTZ AS valuntil, NULL::VARCHAR[] AS useconfig;
CREATE VIEW pg.pg_am AS
    SELECT * FROM (VALUES (2::BIGINT, 'heap', 't'), (403, 'btree', 'i')) AS s(oid, amname, amtype);
CREATE VIEW pg.pg_collation AS
    SELECT 100::BIGINT AS oid, 'default' AS collname, 11::BIGINT AS collnamespace, 10::BIGINT AS collowner,
        'd' AS collprovider, true AS collisdeterministic, -1 AS collencoding, 'C' AS collcollate, 'C' AS collctype,
        NULL::VARCHAR AS colliculocale, NULL::VARCHAR AS collversion;
CREATE VIEW pg.pg_tablespace AS
    SELECT 1663::BIGINT AS oid, 'pg_default' AS spcname, 10::BIGINT AS spcowner, NULL::VARCHAR[] AS spcacl,
        NULL::VARCHAR[] AS spcoptions;
CREATE VIEW pg.pg_settings AS
    SELECT name, setting, NULL::VARCHAR AS unit, 'persist' AS category, '' AS short_desc, '' AS extra_desc,
        'user' AS context, 'string' AS vartype, 'default' AS source, NULL::VARCHAR AS min_val, NULL::VARCHAR AS max_val,
        NULL::VARCHAR[] AS enumvals, setting AS boot_val, setting AS reset_val
    FROM (
        SELECT unnest(map_keys(getvariable('pg_settings'))) AS name,
            unnest(map_values(getvariable('pg_settings'))) AS setting);
CREATE MACRO pg.current_setting(setting_name) AS (
        SELECT any_value(s.setting) FROM pg.pg_settings s WHERE lower(s.name) = lower(setting_name)),
    (setting_name, missing_ok) AS (
        SELECT any_value(s.setting) FROM pg.pg_settings s WHERE lower(s.name) = lower(setting_name));
CREATE VIEW pg.pg_tables AS
    SELECT n.nspname AS schemaname, r.relname AS tablename, getvariable('pg_user') AS tableowner, NULL::VARCHAR AS tablespace,
        r.relhasindex AS hasindexes, false AS hasrules, false AS hastriggers, false AS rowsecurity
    FROM hidden.relations r JOIN hidden.namespaces n ON n.oid = r.relnamespace WHERE r.relkind = 'r';
CREATE VIEW pg.pg_views AS
    SELECT n.nspname AS schemaname, r.relname AS viewname, getvariable('pg_user') AS viewowner, '' AS definition
    FROM hidden.relations r JOIN hidden.namespaces n ON n.oid = r.relnamespace WHERE r.relkind = 'v';
CREATE VIEW pg.pg_indexes AS
    SELECT n.nspname AS schemaname, t.relname AS tablename, k.conname AS indexname, NULL::VARCHAR AS tablespace,
        pg.index_text(k.conname, t.relname, k.columns) AS indexdef
    FROM hidden.keys k JOIN hidden.relations t ON t.oid = k.conrelid JOIN hidden.namespaces n ON n.oid = t.relnamespace;

CREATE VIEW info.schemata AS
    SELECT getvariable('pg_database') AS catalog_name, nspname AS schema_name, getvariable('pg_user') AS schema_owner,
        NULL::VARCHAR AS default_character_set_catalog, NULL::VARCHAR AS default_character_set_schema,
        NULL::VARCHAR AS default_character_set_name, NULL::VARCHAR AS sql_path
    FROM hidden.namespaces;
CREATE VIEW info.tables AS
    SELECT getvariable('pg_database') AS table_catalog, n.nspname AS table_schema, r.relname AS table_name,
        CASE r.relkind WHEN 'v' THEN 'VIEW' ELSE 'BASE TABLE' END AS table_type,
        NULL::VARCHAR AS self_referencing_column_name, NULL::VARCHAR AS reference_generation,
        NULL::VARCHAR AS user_defined_type_name, CASE r.relkind WHEN 'v' THEN 'NO' ELSE 'YES' END AS is_insertable_into,
        'NO' AS is_typed, NULL::VARCHAR AS commit_action
    FROM hidden.relations r JOIN hidden.namespaces n ON n.oid = r.relnamespace WHERE r.relkind IN ('r', 'v');
CREATE VIEW info.views AS
    SELECT table_catalog, table_schema, table_name, '' AS view_definition, 'NONE' AS check_option,
        'NO' AS is_updatable, 'NO' AS is_insertable_into
    FROM info.tables WHERE table_type = 'VIEW';
CREATE VIEW info.columns AS
    SELECT getvariable('pg_database') AS table_catalog, n.nspname AS table_schema, r.relname AS table_name, a.attname AS column_name,
        a.attnum AS ordinal_position, NULL::VARCHAR AS column_default,
        CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END AS is_nullable, t.shown AS data_type,
        NULL::INTEGER AS character_maximum_length, NULL::INTEGER AS character_octet_length,
        CASE a.atttypid WHEN 21 THEN 16 WHEN 23 THEN 32 WHEN 20 THEN 64 WHEN 700 THEN 24 WHEN 701 THEN 53
            WHEN 1700 THEN CASE WHEN a.atttypmod >= 4 THEN (a.atttypmod - 4) >> 16 END END AS numeric_precision,
        CASE WHEN a.atttypid IN (20, 21, 23, 700, 701) THEN 2 WHEN a.atttypid = 1700 THEN 10 END
            AS numeric_precision_radix,
        CASE WHEN a.atttypid IN (20, 21, 23) THEN 0
            WHEN a.atttypid = 1700 AND a.atttypmod >= 4 THEN (a.atttypmod - 4) & 65535 END AS numeric_scale,
        CASE WHEN a.atttypid IN (1083, 1114, 1184, 1186) THEN 6 WHEN a.atttypid = 1082 THEN 0 END AS datetime_precision,
        NULL::VARCHAR AS interval_type, NULL::VARCHAR AS character_set_name, NULL::VARCHAR AS collation_name,
        NULL::VARCHAR AS domain_name, getvariable('pg_database') AS udt_catalog, 'pg_catalog' AS udt_schema, t.typname AS udt_name,
        a.attnum::VARCHAR AS dtd_identifier, 'NO' AS is_identity, 'NEVER' AS is_generated,
        NULL::VARCHAR AS generation_expression, CASE r.relkind WHEN 'v' THEN 'NO' ELSE 'YES' END AS is_updatable
    FROM hidden.attributes a JOIN hidden.relations r ON r.oid = a.attrelid JOIN hidden.namespaces n ON n.oid = r.relnamespace
    JOIN hidden.types t ON t.oid = a.atttypid;
CREATE VIEW info.table_constraints AS
    SELECT getvariable('pg_database') AS constraint_catalog, n.nspname AS constraint_schema, k.conname AS constraint_name,
        getvariable('pg_database') AS table_catalog, n.nspname AS table_schema, r.relname AS table_name,
        'PRIMARY KEY' AS constraint_type, 'NO' AS is_deferrable, 'NO' AS initially_deferred, 'YES' AS enforced
    FROM hidden.keys k JOIN hidden.relations r ON r.oid = k.conrelid JOIN hidden.namespaces n ON n.oid = r.relnamespace;
CREATE VIEW info.key_column_usage AS
    SELECT getvariable('pg_database') AS constraint_catalog, n.nspname AS constraint_schema, s.conname AS constraint_name,
        getvariable('pg_database') AS table_catalog, n.nspname AS table_schema, r.relname AS table_name, a.attname AS column_name,
        s.number AS ordinal_position, NULL::INTEGER AS position_in_unique_constraint
    FROM (SELECT conname, conrelid, unnest(conkey) AS attnum, unnest(range(1, len(conkey) + 1)) AS number FROM hidden.keys) s
    JOIN hidden.attributes a ON a.attrelid = s.conrelid AND a.attnum = s.attnum
    JOIN hidden.relations r ON r.oid = s.conrelid JOIN hidden.namespaces n ON n.oid = r.relnamespace;
CREATE VIEW info.table_privileges AS
    SELECT getvariable('pg_user') AS grantor, getvariable('pg_user') AS grantee, table_catalog, table_schema, table_name, 'SELECT' AS privilege_type,
        'NO' AS is_grantable, 'YES' AS with_hierarchy
    FROM info.tables;

CREATE TABLE pg.pg_attrdef(oid bigint, adrelid bigint, adnum int, adbin text);
CREATE TABLE pg.pg_authid(oid bigint, rolname text);
CREATE TABLE pg.pg_auth_members(roleid bigint, member bigint, grantor bigint, admin_option boolean);
CREATE TABLE pg.pg_cast(oid bigint, castsource bigint, casttarget bigint, castfunc bigint, castcontext text, castmethod text);
CREATE TABLE pg.pg_conversion(oid bigint, conname text, connamespace bigint);
CREATE TABLE pg.pg_default_acl(oid bigint, defaclrole bigint, defaclnamespace bigint, defaclobjtype text, defaclacl text[]);
CREATE TABLE pg.pg_depend(
    classid bigint, objid bigint, objsubid int, refclassid bigint, refobjid bigint, refobjsubid int, deptype text);
CREATE TABLE pg.pg_description(objoid bigint, classoid bigint, objsubid int, description text);
CREATE TABLE pg.pg_enum(oid bigint, enumtypid bigint, enumsortorder real, enumlabel text);
CREATE TABLE pg.pg_event_trigger(oid bigint, evtname text, evtevent text, evtowner bigint, evtenabled text, evttags text[]);
CREATE TABLE pg.pg_extension(
    oid bigint, extname text, extowner bigint, extnamespace bigint, extrelocatable boolean, extversion text);
CREATE TABLE pg.pg_foreign_data_wrapper(oid bigint, fdwname text, fdwowner bigint, fdwhandler bigint, fdwoptions text[]);
CREATE TABLE pg.pg_foreign_server(
    oid bigint, srvname text, srvfdw bigint, srvowner bigint, srvtype text, srvversion text, srvoptions text[]);
CREATE TABLE pg.pg_foreign_table(ftrelid bigint, ftserver bigint, ftoptions text[]);
CREATE TABLE pg.pg_group(groname text, grosysid bigint, grolist bigint[]);
CREATE TABLE pg.pg_inherits(inhrelid bigint, inhparent bigint, inhseqno int, inhdetachpending boolean);
CREATE TABLE pg.pg_language(oid bigint, lanname text, lanowner bigint, lanispl boolean, lanpltrusted boolean);
CREATE TABLE pg.pg_locks(locktype text, pid int, mode text, granted boolean, relation bigint);
CREATE TABLE pg.pg_matviews(
    schemaname text, matviewname text, matviewowner text, ispopulated boolean, definition text);
CREATE TABLE pg.pg_opclass(
    oid bigint, opcname text, opcmethod bigint, opcnamespace bigint, opcdefault boolean, opcintype bigint);
CREATE TABLE pg.pg_operator(
    oid bigint, oprname text, oprnamespace bigint, oprleft bigint, oprright bigint, oprresult bigint);
CREATE TABLE pg.pg_partitioned_table(partrelid bigint, partstrat text, partnatts int, partattrs int[]);
CREATE TABLE pg.pg_policy(
    oid bigint, polname text, polrelid bigint, polcmd text, polpermissive boolean, polroles bigint[], polqual text,
    polwithcheck text);
CREATE TABLE pg.pg_proc(
    oid bigint, proname text, pronamespace bigint, proowner bigint, prokind text, prorettype bigint,
    proargtypes bigint[], pronargs int, prosrc text, proretset boolean, provolatile text, prolang bigint,
    proisstrict boolean, proargnames text[], proallargtypes bigint[], proargmodes text[], provariadic bigint);
CREATE TABLE pg.pg_publication(
    oid bigint, pubname text, pubowner bigint, puballtables boolean, pubinsert boolean, pubupdate boolean,
    pubdelete boolean, pubtruncate boolean, pubviaroot boolean);
CREATE TABLE pg.pg_publication_namespace(oid bigint, pnpubid bigint, pnnspid bigint);
CREATE TABLE pg.pg_publication_rel(oid bigint, prpubid bigint, prrelid bigint, prqual text, prattrs int[]);
CREATE TABLE pg.pg_publication_tables(pubname text, schemaname text, tablename text);
CREATE TABLE pg.pg_range(rngtypid bigint, rngsubtype bigint, rngmultitypid bigint);
CREATE TABLE pg.pg_rewrite(
    oid bigint, rulename text, ev_class bigint, ev_type text, ev_enabled text, is_instead boolean);
CREATE TABLE pg.pg_seclabel(objoid bigint, classoid bigint, objsubid int, provider text, label text);
CREATE TABLE pg.pg_sequence(
    seqrelid bigint, seqtypid bigint, seqstart bigint, seqincrement bigint, seqmax bigint, seqmin bigint,
    seqcache bigint, seqcycle boolean);
CREATE TABLE pg.pg_sequences(
    schemaname text, sequencename text, sequenceowner text, data_type text, start_value bigint, last_value bigint);
CREATE TABLE pg.pg_shdescription(objoid bigint, classoid bigint, description text);
CREATE TABLE pg.pg_stat_activity(
    datid bigint, datname text, pid int, usename text, application_name text, state text, query text,
    backend_start timestamptz, query_start timestamptz, client_addr text);
CREATE TABLE pg.pg_stat_user_tables(
    relid bigint, schemaname text, relname text, seq_scan bigint, n_live_tup bigint, n_dead_tup bigint);
CREATE TABLE pg.pg_statio_user_tables(relid bigint, schemaname text, relname text);
CREATE TABLE pg.pg_statistic_ext(
    oid bigint, stxrelid bigint, stxname text, stxnamespace bigint, stxowner bigint, stxkeys int[], stxkind text[],
    stxstattarget int);
CREATE TABLE pg.pg_subscription(oid bigint, subname text, subdbid bigint, subowner bigint, subenabled boolean);
CREATE TABLE pg.pg_trigger(
    oid bigint, tgrelid bigint, tgname text, tgfoid bigint, tgtype int, tgenabled text, tgisinternal boolean,
    tgconstraint bigint, tgparentid bigint, tgdeferrable boolean, tginitdeferred boolean);
CREATE TABLE pg.pg_ts_config(oid bigint, cfgname text, cfgnamespace bigint);
CREATE TABLE pg.pg_ts_dict(oid bigint, dictname text, dictnamespace bigint);
CREATE TABLE pg.pg_user_mappings(umid bigint, srvid bigint, srvname text, umuser bigint, usename text);

CREATE TABLE info.check_constraints(
    constraint_catalog text, constraint_schema text, constraint_name text, check_clause text);
CREATE TABLE info.constraint_column_usage(
    table_catalog text, table_schema text, table_name text, column_name text, constraint_catalog text,
    constraint_schema text, constraint_name text);
CREATE TABLE info.domains(domain_catalog text, domain_schema text, domain_name text, data_type text);
CREATE TABLE info.element_types(
    object_catalog text, object_schema text, object_name text, object_type text, collection_type_identifier text,
    data_type text);
CREATE TABLE info.parameters(
    specific_catalog text, specific_schema text, specific_name text, ordinal_position int, parameter_name text,
    data_type text);
CREATE TABLE info.referential_constraints(
    constraint_catalog text, constraint_schema text, constraint_name text, unique_constraint_catalog text,
    unique_constraint_schema text, unique_constraint_name text, match_option text, update_rule text, delete_rule text);
CREATE TABLE info.routines(
    specific_catalog text, specific_schema text, specific_name text, routine_catalog text, routine_schema text,
    routine_name text, routine_type text, data_type text);
CREATE TABLE info.sequences(sequence_catalog text, sequence_schema text, sequence_name text, data_type text);
CREATE TABLE info.triggers(
    trigger_catalog text, trigger_schema text, trigger_name text, event_object_schema text, event_object_table text,
    event_manipulation text);
