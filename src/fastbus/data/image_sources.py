"""Facts about official image files: where they are, what their checksums are, what their classes mean.

Archive checksums are those of the authors' pages; MNIST's and Fashion-MNIST's are of the packed files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fastbus.data.downloads import Checksum

# Which classes are the positive one where a benchmark is binary.
BINARY_POSITIVES = {"cifar10": (0, 1, 8, 9), "mnist": (0, 1, 2, 3, 4), "fashion_mnist": (5, 7, 9)}


@dataclass(frozen=True)
class Official:
    """One image set as its authors publish it."""

    name: str
    folder: str  # what its archive unpacks to, or where its files are customarily put
    url: str  # of the archive, or of the folder that holds its files
    files: dict[str, Checksum | int | None]  # what is known of each: a checksum, a size, or nothing
    archive: str | None = None
    checksum: Checksum | None = None  # of the archive
    packed: tuple[str, ...] = ()  # MD5 of every file with .gz, where there is no archive
    pickled: str | None = None  # the folder of the version that is never loaded
    classes: tuple[str, ...] = field(default=())


CIFAR10 = Official(
    name="CIFAR-10",
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    checksum=Checksum("md5", "c32a1d4ab5d03f1284b67883e8d87530"),
    files={
        f"{name}.bin": Checksum("sha256", digest)
        for name, digest in (
            ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    },
    pickled="cifar-10-batches-py",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
CIFAR100 = Official(
    name="CIFAR-100",
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    checksum=Checksum("md5", "03b5dce01913d631647c71ecec9e9cb8"),
    # the authors publish a checksum of the archive only, so unpacked files are held against their sizes
    files={"train.bin": 50_000 * 3074, "test.bin": 10_000 * 3074}
    | {"fine_label_names.txt": None, "coarse_label_names.txt": None},
    pickled="cifar-100-python",
)
STL10 = Official(
    name="STL-10",
    folder="stl10_binary",
    archive="stl10_binary.tar.gz",
    url="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    checksum=Checksum("md5", "91f7769df0f17e558f3565bffb0c7dfb"),
    files={
        "train_X.bin": Checksum("md5", "918c2871b30a85fa023e0c44e0bee87f"),
        "train_y.bin": Checksum("md5", "5a34089d4802c674881badbb80307741"),
        "test_X.bin": Checksum("md5", "7f263ba9f9e0b06b93213547f721ac82"),
        "test_y.bin": Checksum("md5", "36f9794fa4beb8a2c72628de14fa638e"),
        "unlabeled_X.bin": Checksum("md5", "5242ba1fed5e4be9e1e742405eb56ca4"),
    },
    classes=("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
)
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST = Official(
    name="MNIST",
    folder="MNIST/raw",
    # the mirror that is left; the author's own page no longer serves the files
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    files={
        name: Checksum("sha256", digest)
        for name, digest in zip(
            IDX_FILES,
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            strict=True,
        )
    },
    packed=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    classes=tuple(str(digit) for digit in range(10)),
)
FASHION_MNIST = Official(
    name="Fashion-MNIST",
    folder="FashionMNIST/raw",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    files={
        name: Checksum("sha256", digest)
        for name, digest in zip(
            IDX_FILES,
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            strict=True,
        )
    },
    packed=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
)
