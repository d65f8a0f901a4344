# syntax=docker/dockerfile:1
# The command inline with all extras.
#   docker build -t inline .
#   docker build -t inline:cuda --build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 \
#       --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 --build-arg FORCE_CUDA=1 .
# BASE is a Debian or Ubuntu image whose Python is 3.11 or newer, for a GPU one with nvcc.
ARG BASE=debian:bookworm-slim
# hadolint ignore=DL3006
FROM ${BASE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# The versions of Debian's packages follow from BASE.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential libgl1 libglib2.0-0 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/inline
ENV PATH=/opt/inline/bin:$PATH

WORKDIR /opt/source
COPY requirements.txt constraints.txt ./
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    grep -E '^(torch|torchvision|click|ninja|psutil|setuptools|wheel)==' requirements.txt \
    | xargs pip install --extra-index-url "$TORCH_INDEX" --constraint constraints.txt

# mmcv compiles its operators, which takes minutes: a layer that only other pins rebuild. Without MMCV_WITH_OPS it would
# be installed without operators; FORCE_CUDA=1 compiles those for GPUs although none is visible during a build.
ARG FORCE_CUDA=0
RUN --mount=type=cache,target=/root/.cache/pip \
    grep -E '^onedl-mmcv==' requirements.txt \
    | CFLAGS="-g0 -O2" MMCV_WITH_OPS=1 FORCE_CUDA="$FORCE_CUDA" \
        xargs pip install --no-build-isolation --constraint requirements.txt --constraint constraints.txt

COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-build-isolation --constraint requirements.txt --constraint constraints.txt \
        '.[openmmlab,export,serve,timm,hub]' \
    && inline doctor \
    && useradd --create-home --uid 1000 inline \
    && install --directory --owner inline /workspace

USER 1000
WORKDIR /workspace
ENTRYPOINT ["inline"]
CMD ["--help"]
