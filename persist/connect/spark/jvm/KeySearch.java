package dev.persist.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Looks up the rows of a query for certain keys: {@code WHERE id = 5}, {@code WHERE a = 'x' AND b IN (1, 2)}.
 *
 * <p>Python looks these keys up while the query is planned, so no job of Spark reads the collection. The condition stays
 * in the query, so it is correct if Python returns too many rows.
 */
final class KeySearch {
  private static final int KEYS_MAX = 1000;

  private KeySearch() {}

  /** Return a plan with the rows of its keys in place of contents; null without a condition on all key columns. */
  static LogicalPlan find(LogicalPlan node) {
    if (!(node instanceof Filter)) return null;
    List<Expression> terms = new ArrayList<>();
    LogicalPlan below = node;
    for (; !(below instanceof DataSourceV2Relation); below = below.children().head()) {
      if (below instanceof Filter filter) terms.addAll(terms(filter.condition()));
      else if (!(Rewrite.isName(below) || below instanceof Project project && isDeterministic(project))) return null;
    }
    DataSourceV2Relation relation = (DataSourceV2Relation) below;
    Contents contents = Rewrite.contents(relation);
    if (contents == null || contents.keys().isEmpty()) return null;
    Map<String, List<Object>> keys = new LinkedHashMap<>();
    long count = 1;
    for (String name : contents.keys()) {
      List<Object> values = values(name, relation, terms);
      if (values == null) return null;
      keys.put(name, values);
      count *= values.size();
      if (count > KEYS_MAX) return null;
    }
    Dataset<Row> rows = contents.rows("find", "keys", keys);
    if (rows == null) return null;
    LogicalPlan found = Rewrite.replace(relation, rows);
    return (LogicalPlan) node.transformUp(Functions.where(other -> other == relation ? found : null));
  }

  private static boolean isDeterministic(Project project) {
    return project.projectList().forall(Functions.of(column -> ((Expression) column).deterministic()));
  }

  /** Return the terms that AND joins in a condition. */
  static List<Expression> terms(Expression condition) {
    if (!(condition instanceof And and)) return List.of(condition);
    List<Expression> terms = new ArrayList<>(terms(and.left()));
    terms.addAll(terms(and.right()));
    return terms;
  }

  /** Return the constants to which a term compares a column by = or IN; null without such a term. */
  private static List<Object> values(String name, DataSourceV2Relation relation, List<Expression> terms) {
    for (Expression term : terms) {
      List<Expression> given;
      Expression tested;
      if (term instanceof In in) {
        tested = in.value();
        given = CollectionConverters.asJava(in.list());
      } else if (term instanceof EqualTo equal) {
        boolean isLeft = !equal.left().foldable();
        tested = isLeft ? equal.left() : equal.right();
        given = List.of(isLeft ? equal.right() : equal.left());
      } else {
        continue;
      }
      DataType type = tested.dataType();
      if (tested instanceof Cast cast && isExact(cast.child().dataType(), type)) tested = cast.child();
      if (!(tested instanceof Attribute column && isColumn(column, name, relation))) continue;
      List<Object> values = new ArrayList<>();
      for (Expression one : given) if (!addValue(one, type, values)) return null;
      return values;
    }
    return null;
  }

  /** Return whether a cast keeps all values distinct. */
  static boolean isExact(DataType from, DataType to) {
    return from.equals(to)
        || from instanceof IntegralType && to instanceof IntegralType && from.defaultSize() < to.defaultSize();
  }

  /** Return whether an attribute is the column {@code name} of a relation. */
  static boolean isColumn(Attribute column, String name, DataSourceV2Relation relation) {
    return relation.output().exists(Functions.of(own -> own.exprId().equals(column.exprId()) && own.name().equals(name)));
  }

  /** Add a constant to the values, unless it is NULL; return false if the term is not a constant of this type. */
  private static boolean addValue(Expression term, DataType type, List<Object> values) {
    boolean isNumber = type instanceof IntegralType;
    if (!term.dataType().equals(type) || !isNumber && !type.equals(DataTypes.StringType)) return false;
    boolean isCast = isNumber && term instanceof Cast cast && cast.child() instanceof Literal literal
        && literal.dataType() instanceof IntegralType;
    if (term instanceof Cast cast && cast.child() instanceof Literal literal && literal.value() == null) return true;
    if (!isCast && !(term instanceof Literal)) return false;
    Object value = term.eval(null);
    if (value != null) values.add(value instanceof UTF8String text ? text.toString() : value);
    return true;
  }
}
