package dev.persist.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** The value of {@code spark.sql.extensions}: the rules that read tables of persist. */
public final class PersistExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPlanNormalizationRule(Functions.of(session -> new Rewrite()));
    extensions.injectResolutionRule(Functions.of(session -> new StreamRewrite()));
    extensions.injectPreCBORule(Functions.of(session -> new KeyFilter()));
    return BoxedUnit.UNIT;
  }
}
