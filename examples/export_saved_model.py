"""Export what was trained for serving: a SavedModel that takes and returns text, and other formats of the logits.

python examples/export_saved_model.py                          # runs/little to served/little/1, then /2, ...
python examples/export_saved_model.py --onnx little.onnx       # its logits as ONNX, too
"""

import argparse
import sys


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="runs/little", help="directory that TextGenerator.save wrote (default: runs/little)")
    add("--output", default="served/little", help="directory of the versions (default: served/little)")
    add("--onnx", help="file to write the logits to as ONNX")
    add("--litert", help="file to write the logits to as LiteRT (.tflite)")
    add("--openvino", help="file to write the logits to as OpenVINO (.xml)")
    return parser.parse_args()


def main(arguments):
    generator = keras_lt.TextGenerator.load(arguments.model)
    print(generator)
    print(f"wrote {keras_lt.serving.export_saved_model(generator, arguments.output)}")
    for name in ("onnx", "litert", "openvino"):
        if path := getattr(arguments, name):
            generator.model.export(path, format=name, verbose=False)
            print(f"wrote {path}")


if __name__ == "__main__":
    arguments = parse_arguments()
    # Here, not above, so that --help answers at once.
    import keras_lt

    try:
        main(arguments)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"{error}")
