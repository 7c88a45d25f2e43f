package dev.persist.spark;

import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegralType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Limits MERGE INTO to the range of keys that its source has: only this range of the target is read.
 *
 * <p>A small job finds the range while the statement is planned. Parts are sorted by key, so the scan skips row groups
 * outside of the range. The source is read twice, and must return the same rows each time. So it may only consist of
 * files, tables of persist, rows of the driver, and deterministic operators.
 */
final class KeyRange {
  private KeyRange() {}

  /** Return the join with a condition on the key of its target; null for other nodes. */
  static LogicalPlan limit(LogicalPlan node) {
    if (!(node instanceof Join join) || join.condition().isEmpty()) return null;
    boolean dropsTarget = join.joinType() == Inner$.MODULE$ || join.joinType() == RightOuter$.MODULE$;
    if (!dropsTarget || !isFixed(join.right())) return null;
    // Only the target is limited: the source may join, count or limit other tables of persist.
    LogicalPlan below = join.left();
    while (below instanceof Project || below instanceof Filter || Rewrite.isName(below)) below = below.children().head();
    if (!(below instanceof DataSourceV2Relation target && target.table() instanceof RowLevelOperationTable operation
        && operation.table() instanceof PersistTable table)) return null;
    for (Expression term : KeySearch.terms(join.condition().get())) {
      Expression range = range(term, table, target, join.right());
      if (range == null) continue;
      LogicalPlan limited = new Filter(range, target);
      Object left = join.left().transformUp(Functions.where(other -> other == target ? limited : null));
      return new Join((LogicalPlan) left, join.right(), join.joinType(), join.condition(), join.hint());
    }
    return null;
  }

  /** Return the condition for the least and greatest key of the source; null if there is none. */
  private static Expression range(Expression term, PersistTable table, DataSourceV2Relation target, LogicalPlan source) {
    String key = table.properties().getOrDefault("key", "").split(",")[0];
    if (!(term instanceof EqualTo equal)) return null;
    boolean isLeft = equal.left() instanceof Attribute own && KeySearch.isColumn(own, key, target);
    Expression column = isLeft ? equal.left() : equal.right();
    Expression other = isLeft ? equal.right() : equal.left();
    if (!(column instanceof Attribute own && KeySearch.isColumn(own, key, target)) || !isOrdered(own.dataType())
        || !isColumn(other) || !other.references().subsetOf(source.outputSet())) return null;
    // Spark's scan skips row groups by literals, and not by the fields of a subquery with both ends.
    List<NamedExpression> ends = List.of(end(new Min(other), "least"), end(new Max(other), "greatest"));
    LogicalPlan plan = new Aggregate(Rewrite.seq(List.of()), Rewrite.seq(ends), source, Option.empty());
    Row found = Dataset.ofRows(SparkSession.active(), plan).collectAsList().get(0);
    if (found.isNullAt(0)) return Literal.FalseLiteral();
    // Invalid UTF-8 becomes this character here, and then the end of the range is wrong.
    if (found.get(0) instanceof String least && (least + found.get(1)).contains("\uFFFD")) return null;
    return new And(new GreaterThanOrEqual(column, Literal.create(found.get(0), other.dataType())),
        new LessThanOrEqual(column, Literal.create(found.get(1), other.dataType())));
  }

  /** Return whether a term is a column, or a column in an exact cast, so that computing it early cannot fail. */
  private static boolean isColumn(Expression term) {
    return term instanceof Attribute
        || term instanceof Cast cast && cast.child() instanceof Attribute from
            && KeySearch.isExact(from.dataType(), cast.dataType());
  }

  /** Return whether Java and Parquet order values of a type alike. */
  private static boolean isOrdered(DataType type) {
    return type instanceof IntegralType || type.equals(DataTypes.StringType);
  }

  private static NamedExpression end(AggregateFunction function, String name) {
    return Rewrite.alias(function.toAggregateExpression(), name);
  }

  /** Return whether a plan returns the same rows each time. */
  private static boolean isFixed(LogicalPlan plan) {
    boolean isKnown = plan instanceof Project || plan instanceof Filter || plan instanceof Union || Rewrite.isName(plan)
        || plan instanceof LocalRelation || plan instanceof Range
        || plan instanceof LogicalRelation files && files.relation() instanceof HadoopFsRelation
        || plan instanceof DataSourceV2Relation relation && Rewrite.contents(relation) != null;
    boolean isSame = plan.deterministic() && !plan.containsPattern(TreePattern.CURRENT_LIKE())
        && !plan.containsPattern(TreePattern.PLAN_EXPRESSION());  // A subquery may read anything.
    return isKnown && isSame && plan.children().forall(Functions.of(child -> isFixed(child)));
  }
}
