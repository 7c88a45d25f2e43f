package dev.persist.spark;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataType;

/**
 * Keys in Spark's order, without NULL. A search begins where the one before it ended.
 *
 * <p>The rows of a part are sorted by key. So the next place is mostly the last one or close behind it, which takes a
 * nanosecond. Binary search finds all other places, so rows may have any order.
 *
 * <p>Each kind has two methods for generated code. {@code find(at, key)} returns the place of a key among the sorted
 * ones, from any place as a start. {@code has(at, key)} tells whether the key at that place is equal.
 */
abstract class SortedKeys implements Serializable {
  /** The number of keys that a search looks at in turn. */
  static final int NEAR = 8;

  static SortedKeys of(ArrayData keys, DataType type) {
    return LongKeys.isFor(type) ? new LongKeys(keys, type) : new ObjectKeys(keys, type);
  }

  /** Return the text of a term that is an argument of {@code find}. */
  abstract String argument(String value);

  /** Return whether a value of Spark is among the keys. */
  abstract boolean contains(Object value);
}
