"""Prints the tables of docs/accuracy.md: ``python -m tests.accuracy``."""

from tests.step.test_vllm_h200 import STEPS, step


def main() -> None:
    """Whole steps of vLLM 0.26.0 on an H200, beside the estimate for engine vllm and its 90 % interval."""
    print("row             context  k  measured ms  predicted ms   error  90 % interval")
    for row, (context, k, measured) in STEPS.items():
        total = step(context, k).total
        low, predicted, high = (1e3 * float(value) for value in (total.low, total.seconds, total.high))
        error = f"{predicted / measured - 1:+.1%}"
        print(f"{row}  {context:>8,}  {k}  {measured:>11.2f}  {predicted:>12.2f}  {error:>6}  {low:.2f}..{high:.2f}")


if __name__ == "__main__":
    main()
