package dev.persist.spark;

import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;
import scala.collection.immutable.Map$;

/** An error of persist as one of Spark, so that PySpark shows its message and no stack of the JVM. */
public final class PersistException extends AnalysisException {
  private PersistException(String message) {
    super(message, Option.empty(), Option.empty(), Option.empty(), Option.empty(), Map$.MODULE$.<String, String>empty(),
        new QueryContext[0]);
  }

  /** Return a checked exception of Spark as an unchecked one, which methods may throw without declaring it. */
  static RuntimeException of(String message) {
    return PersistException.<RuntimeException>unchecked(new PersistException(message));
  }

  @SuppressWarnings("unchecked")
  private static <E extends Exception> E unchecked(Exception error) throws E {
    throw (E) error;
  }
}
