package dev.persist.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.MicrosToTimestamp;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.ScalarSubquery;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UncacheTable;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.util.RowDeltaUtils;
import org.apache.spark.sql.catalyst.util.WriteDeltaProjections;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.v2.ChangelogTable;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The rule that turns tables of persist into plans of Spark's own operators, before Spark optimises a query.
 *
 * <ul>
 *   <li>A table becomes the plan of a DataFrame, which Python makes of the collection as of the table's time.
 *   <li>{@code SELECT count(*)} becomes a number, if the descriptors of parts suffice to count. Any other query that needs
 *       no column reads rows without columns.
 *   <li>A query of min() and max() alone reads the extremes in the descriptors of parts.
 *   <li>DELETE, UPDATE and MERGE become an insert of updates: removed records have {@code _diff} -1, new ones 1.
 *   <li>A MERGE reads only the range of its source's keys ({@link KeyRange}). A condition on all key columns becomes a
 *       look-up ({@link KeySearch}).
 *   <li>The condition of an overwrite is passed on as a column, because Python reads the records that it replaces.
 * </ul>
 */
final class Rewrite extends Rule<LogicalPlan> {
  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    if (plan instanceof UncacheTable uncached && relation(uncached.table()) != null)
      throw PersistException.of("Spark keeps a cached table of persist as of its time and under no name, so UNCACHE TABLE "
          + "does not find it: CLEAR CACHE frees all that is cached, and unpersist() a DataFrame that cache() keeps");
    LogicalPlan written = plan.transformUp(Functions.where(Rewrite::write));
    LogicalPlan counted = written.transformUpWithSubqueries(Functions.where(Rewrite::count));
    LogicalPlan bounded = counted.transformUpWithSubqueries(Functions.where(Rewrite::bound));
    LogicalPlan found = bounded.transformDownWithSubqueries(Functions.where(KeySearch::find));
    return found.transformUpWithSubqueries(Functions.where(Rewrite::read));
  }

  /** Return the plan of a row-level operation or conditional overwrite; null for other nodes. */
  private static LogicalPlan write(LogicalPlan node) {
    if (node instanceof WriteDelta delta && delta.originalTable() instanceof DataSourceV2Relation relation
        && relation.table() instanceof PersistTable table) {
      LogicalPlan query = (LogicalPlan) delta.query().transformUp(Functions.where(KeyRange::limit));
      LogicalPlan updates = updates(table.schema(), query, delta.projections());
      return new AppendData(relation, updates, Map$.MODULE$.<String, String>empty(), false, false, Option.empty(),
          Option.apply(updates));
    }
    if (node instanceof OverwriteByExpression overwrite && overwrite.table() instanceof DataSourceV2Relation relation
        && relation.table() instanceof PersistTable table && !overwrite.deleteExpr().equals(Literal.TrueLiteral())) {
      Expression plain = (Expression) overwrite.deleteExpr().transformUp(Functions.where(Rewrite::portable));
      DataSourceV2Relation target = relation.copy(table.where(plain), relation.output(), relation.catalog(),
          relation.identifier(), relation.options(), relation.timeTravelSpec());
      return overwrite.copy(target, Literal.TrueLiteral(), overwrite.query(), overwrite.writeOptions(),
          overwrite.isByName(), overwrite.withSchemaEvolution(), overwrite.write(), overwrite.analyzedQuery());
    }
    return null;
  }

  /**
   * Return a term that is valid for any rows with these columns; null if it is so already.
   *
   * <p>Columns become names. Moments become numbers, because Spark would write them as text in the session's time zone, in
   * which an hour may occur twice.
   */
  private static Expression portable(Expression term) {
    if (term instanceof AttributeReference column) return UnresolvedAttribute.quoted(column.name());
    if (term instanceof Literal literal && literal.dataType().equals(DataTypes.TimestampType) && literal.value() != null)
      return new MicrosToTimestamp(Literal.create(literal.value(), DataTypes.LongType));
    return null;
  }

  /** Return a plan of updates, with {@code _diff}, from the rows of a DELETE, UPDATE or MERGE. */
  private static LogicalPlan updates(StructType schema, LogicalPlan query, WriteDeltaProjections projections) {
    List<Attribute> given = CollectionConverters.asJava(query.output());
    Expression record = given.get(ordinal(projections.rowIdProjection().colOrdinals(), 0));
    Expression operation = given.stream()
        .filter(one -> one.name().equals(RowDeltaUtils.OPERATION_COLUMN())).findFirst().orElseThrow();
    Expression goes = new EqualTo(operation, Literal.create(RowDeltaUtils.DELETE_OPERATION(), DataTypes.IntegerType));
    List<NamedExpression> columns = new ArrayList<>();
    for (int at = 0; at < schema.length(); at++) {
      Expression column = new GetStructField(record, at, Option.empty());
      if (projections.rowProjection().isDefined())
        column = new If(goes, column, given.get(ordinal(projections.rowProjection().get().colOrdinals(), at)));
      columns.add(alias(column, schema.apply(at).name()));
    }
    columns.add(alias(new If(goes, count(-1), count(1)), "_diff"));
    return new Project(seq(columns), query);
  }

  /** Return a number as a BIGINT literal. */
  private static Literal count(long number) {
    return Literal.create(number, DataTypes.LongType);
  }

  private static int ordinal(Seq<Object> ordinals, int at) {
    return (Integer) ordinals.apply(at);
  }

  /** Return a count of rows as a number, or over rows without columns; null for other nodes. */
  private static LogicalPlan count(LogicalPlan node) {
    if (!(node instanceof Aggregate aggregate) || !aggregate.references().isEmpty()) return null;
    LogicalPlan below = aggregate.child();
    while (isName(below) || below instanceof Project) below = below.children().head();
    if (!(below instanceof DataSourceV2Relation relation && relation.table() instanceof Contents table)) return null;
    List<NamedExpression> terms = CollectionConverters.asJava(aggregate.aggregateExpressions());
    if (table.description.get("counted").asBoolean() && aggregate.groupingExpressions().isEmpty()
        && terms.stream().allMatch(Rewrite::countsRows)) {
      Literal number = count(table.description.get("rows").asLong());
      LogicalPlan row = new LocalRelation(seq(List.of()), seq(List.of(InternalRow.empty())), false, Option.empty());
      return new Project(seq(terms.stream().<NamedExpression>map(term -> alias(number, term.toAttribute())).toList()), row);
    }
    LogicalPlan rows = table.rows("read", "columns", List.of()).queryExecution().analyzed();
    return aggregate.withNewChildren(seq(List.of(rows)).toIndexedSeq());
  }

  /** Return whether a term counts rows: {@code count(*)}, or of a constant. */
  private static boolean countsRows(NamedExpression named) {
    return named instanceof Alias alias && alias.child() instanceof AggregateExpression term && term.filter().isEmpty()
        && !term.isDistinct() && term.aggregateFunction() instanceof Count count
        && count.children().forall(Functions.of(child -> child instanceof Literal literal && literal.value() != null));
  }

  /** Return whether a node is only an alias or a view of the plan below. */
  static boolean isName(LogicalPlan node) {
    return node instanceof SubqueryAlias || node instanceof View;
  }

  /** Return the relation of a plan that only reads contents; null for other plans. */
  private static DataSourceV2Relation relation(LogicalPlan plan) {
    while (isName(plan)) plan = plan.children().head();
    return plan instanceof DataSourceV2Relation relation && relation.table() instanceof Contents ? relation : null;
  }

  /** Return a query of min() and max() over rows that contain these values; null for other nodes. */
  private static LogicalPlan bound(LogicalPlan node) {
    if (!(node instanceof Aggregate aggregate) || !aggregate.groupingExpressions().isEmpty()) return null;
    DataSourceV2Relation relation = relation(aggregate.child());
    if (relation == null) return null;
    Map<String, AttributeReference> columns = new LinkedHashMap<>();
    for (NamedExpression named : CollectionConverters.asJava(aggregate.aggregateExpressions())) {
      if (!(named instanceof Alias alias && alias.child() instanceof AggregateExpression term && term.filter().isEmpty()
          && (term.aggregateFunction() instanceof Min || term.aggregateFunction() instanceof Max)
          && term.aggregateFunction().children().head() instanceof AttributeReference column)) return null;
      AttributeReference own = CollectionConverters.asJava(relation.output()).stream()
          .filter(one -> one.exprId().equals(column.exprId())).findFirst().orElse(null);
      if (own == null) return null;
      columns.put(own.name(), own);  // A query may write the name in other letters.
    }
    Dataset<Row> rows = ((Contents) relation.table()).rows("extremes", "columns", columns.keySet());
    if (rows == null) return null;
    LogicalPlan plan = rows.queryExecution().analyzed();
    List<NamedExpression> known = new ArrayList<>();
    columns.forEach((name, column) -> known.add(alias(named(name, CollectionConverters.asJava(plan.output())), column)));
    return aggregate.withNewChildren(seq(List.<LogicalPlan>of(new Project(seq(known), plan))).toIndexedSeq());
  }

  /** Return the plan that Python makes for a table or its changes; null for other nodes. */
  private static LogicalPlan read(LogicalPlan node) {
    if (!(node instanceof DataSourceV2Relation relation)) return null;
    if (relation.table() instanceof ChangelogTable changes && changes.changelog() instanceof PersistChangelog log)
      return replace(relation, Python.rows(null, "changes", log.arguments()));
    Contents contents = contents(relation);
    return contents == null ? null : replace(relation, contents.rows("read"));
  }

  /** Return the contents that a relation reads, also within a row-level operation; otherwise null. */
  static Contents contents(DataSourceV2Relation relation) {
    Table table = relation.table() instanceof RowLevelOperationTable operation ? operation.table() : relation.table();
    return table instanceof Contents contents ? contents : null;
  }

  /** Return the plan of rows under the columns of a relation, with their identities. */
  static LogicalPlan replace(DataSourceV2Relation relation, Dataset<Row> rows) {
    LogicalPlan plan = rows.queryExecution().analyzed();
    List<Attribute> source = CollectionConverters.asJava(plan.output());
    List<NamedExpression> columns = new ArrayList<>();
    for (AttributeReference wanted : CollectionConverters.asJava(relation.output())) {
      Expression column = wanted.name().equals(PersistTable.RECORD) && wanted.dataType() instanceof StructType
          ? record((StructType) wanted.dataType(), source)
          : named(wanted.name(), source);
      columns.add(alias(column, wanted));
    }
    return new Project(seq(columns), plan);
  }

  /** Return a struct of the columns of a record. */
  private static Expression record(StructType schema, List<Attribute> source) {
    List<Expression> terms = new ArrayList<>();
    for (String name : schema.fieldNames()) {
      terms.add(Literal.create(name, DataTypes.StringType));
      terms.add(named(name, source));
    }
    return new CreateNamedStruct(seq(terms));
  }

  /** Return the attribute of a name. */
  private static Attribute named(String name, List<Attribute> source) {
    return source.stream().filter(one -> one.name().equals(name)).findFirst()
        .orElseThrow(() -> new IllegalStateException(name + " is not in " + source));
  }

  /** Return the one value of a plan, for use in an expression. */
  static ScalarSubquery subquery(LogicalPlan plan) {
    return new ScalarSubquery(plan, seq(List.of()), NamedExpression.newExprId(), seq(List.of()), Option.empty(), Option.empty(),
        Option.empty());
  }

  static Alias alias(Expression term, String name) {
    return new Alias(term, name, NamedExpression.newExprId(), seq(List.of()), Option.empty(), seq(List.of()));
  }

  /** Return a term under the name and identity of an attribute. */
  static Alias alias(Expression term, Attribute as) {
    return new Alias(term, as.name(), as.exprId(), seq(List.of()), Option.apply(as.metadata()), seq(List.of()));
  }

  static <T> Seq<T> seq(List<T> items) {
    return CollectionConverters.asScala(items).toSeq();
  }
}
