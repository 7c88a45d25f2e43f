-- Queries of the kinds that DuckDB's own tests ask, which have one answer, and which are refused when a view is made.
-- Ordered by how often such are asked; `docs/use/views-sql.md` says why.

-- Types that columns here do not have, or that have an order of their own.
SELECT s::ENUM('x', 'xy') AS x FROM t WHERE s IN ('x', 'xy');
SELECT a::UHUGEINT AS x FROM t;
SELECT a::BIT AS x FROM t;
SELECT '0101'::BIT & '0011'::BIT AS x, a FROM t;
SELECT s::ENUM('', 'x', 'xy', 'abc', 'a%', 'é_', 'X') AS x, count(*) AS n FROM t GROUP BY 1;
SELECT t.a FROM t JOIN u ON t.a::UHUGEINT = u.a::UHUGEINT;
SELECT bitstring('0101', 8) AS x, a FROM t;
SELECT a, bitstring_agg(b, 0, 10) AS x FROM t GROUP BY a;
SELECT '10:00:00+02'::TIMETZ AS x, a FROM t;
SELECT union_value(n := a) AS x FROM t;
SELECT union_tag(union_value(k := a)) AS x FROM t;
SELECT a::VARIANT AS x FROM t;
SELECT a::BIGNUM AS x FROM t;
SELECT 170141183460469231731687303715884105727 AS x, a FROM t;

-- Numbers that are not constants.
SELECT nth_value(b, a) OVER (ORDER BY a, b, s, d, m, f ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS x FROM t;
SELECT lag(b, a IGNORE NULLS) OVER (ORDER BY a, b, s, d, m, f) AS x FROM t;
SELECT sum(b) OVER (ORDER BY a ROWS BETWEEN a PRECEDING AND CURRENT ROW) AS r FROM t WHERE a IS NOT NULL;
SELECT a FROM t ORDER BY a LIMIT (SELECT 2);
SELECT a FROM t ORDER BY a, b, s, d, m, f LIMIT 10 PERCENT;

-- Functions of windows.
SELECT rank(ORDER BY b) OVER (PARTITION BY a) AS x FROM t;
SELECT first_value(s ORDER BY b, s) OVER (PARTITION BY a) AS x FROM t;
SELECT fill(b) OVER (ORDER BY d) AS x FROM t;

-- Others.
SELECT a FROM t WHERE s COLLATE NOCASE = 'X';
SELECT arg_min_null(a, b) AS x FROM t;
SELECT hash(s) AS x FROM t;
SELECT * FROM repeat(1, 3);
SELECT to_days(a) AS i FROM t EXCEPT SELECT to_days(1);
SELECT [to_days(a)] AS i FROM t;
WITH RECURSIVE r(n) USING KEY (n) AS (SELECT a FROM u UNION SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r;
PIVOT t ON b USING sum(a) GROUP BY s;
SELECT getvariable('x') AS x FROM t;
SELECT * FROM query('SELECT a FROM t');
SELECT sum(a) EXPORT_STATE AS x FROM t;
SELECT a, finalize(sum(b) EXPORT_STATE) AS x FROM t GROUP BY a;
