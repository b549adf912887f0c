# The image of lb-linker: the static program and CA certificates.
#
#   make image          builds the program with this machine's Rust, and the image as an archive
#   docker build .      builds the program in a container, for a machine without Rust
ARG PROGRAM=build

# bookworm: glibc 2.36, in which a static program resolves names without shared libraries.
FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /lb-linker
COPY . .
RUN make static rootfs

# What `make rootfs` has made outside of the container.
FROM scratch AS prebuilt
COPY target/image/rootfs /lb-linker/target/image/rootfs

FROM ${PROGRAM} AS program

FROM scratch
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lb-linker" \
      org.opencontainers.image.description="Stable DNS names for the load balancers of a Kubernetes cluster" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=program /lb-linker/target/image/rootfs /
# As in deploy/. A number, so that runAsNonRoot can be checked.
USER 65532:65532
EXPOSE 53/udp 53/tcp 9153/tcp 8080/tcp 8181/tcp
ENTRYPOINT ["/lb-linker"]
