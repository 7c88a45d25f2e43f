package dev.persist.spark;

import java.util.function.Function;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/** Converts functions of Java to functions of Scala. */
final class Functions {
  private Functions() {}

  static <A, B> AbstractFunction1<A, B> of(Function<A, B> function) {
    return new AbstractFunction1<>() {
      @Override
      public B apply(A argument) {
        return function.apply(argument);
      }
    };
  }

  /** Return a partial function, which is undefined where the function returns null. */
  static <A> AbstractPartialFunction<A, A> where(Function<A, A> function) {
    return new AbstractPartialFunction<>() {
      @Override
      public boolean isDefinedAt(A argument) {
        return true;
      }

      @Override
      @SuppressWarnings("unchecked")
      public <C extends A, D> D applyOrElse(C argument, scala.Function1<C, D> otherwise) {
        A result = function.apply(argument);
        return result == null ? otherwise.apply(argument) : (D) result;
      }
    };
  }
}
