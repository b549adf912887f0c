# For GNU make. The prerequisites of a target run one after the other, because they share cargo's build directory.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo recording test test-release bench bench-cluster chaos soak peers build static rootfs image lint docs crd control-plane stubs go-programs helm promtool previous fuzz has-rust has-linker has-cargo-fuzz

# The minimum version of Rust.
RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# Seconds for each fuzz target.
FUZZ_SECONDS := 60
FUZZ_TARGETS := corefile dnstap etcd expression geoip grpc https keys manifest proxy question quic reply rules snapshot \
    stream transfer tsig watch zone

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: has-linker ## show lb-linker at work, without a cluster (the first build takes some minutes)
	cargo build --locked --bin lb-linker --example demo
	@cargo run --locked --quiet --example demo

recording: has-linker ## write the picture in README.md, docs/demo.svg, from a run of the demo
	cargo build --locked --bin lb-linker --example demo
	cargo run --locked --quiet --example demo -- --svg docs/demo.svg

test: has-rust ## run the tests for a change, against a real kube-apiserver, and print how long each part took
	tests/run

test-release: has-rust ## test what is released: image, chart, alerts, the upgrade from an older version, large clusters, the oldest Kubernetes; mutated input
	tests/run release

bench: has-linker ## measure the CPU time of a query, beside other DNS servers (needs two idle cores)
	cargo bench --locked --bench queries

build: has-linker ## build target/release/lb-linker
	cargo build --locked --release --target-dir target --bin lb-linker

# The host's target by name: without it, RUSTFLAGS apply to build scripts and procedural macros, too, which can't be
# static. The paths of this machine stay out of the program, so that it is the same wherever it is built.
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
STATIC_FLAGS := -C target-feature=+crt-static --remap-path-prefix=$(CURDIR)=/lb-linker \
    --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo

static: has-linker ## build the program linked statically, for the image: target/static/lb-linker
	env -u CARGO_ENCODED_RUSTFLAGS RUSTFLAGS="$(STATIC_FLAGS)" \
	    cargo build --locked --release --target-dir target --target $(HOST) --bin lb-linker
	mkdir -p target/static && cp target/$(HOST)/release/lb-linker target/static/lb-linker

rootfs: ## collect the files of the image in target/image/rootfs (after make static)
	image/rootfs target/static/lb-linker

image: static rootfs ## build the image with docker, podman or buildah, and its SBOM: target/image/
	image/build
	image/sbom

# For a benchmark, Cargo builds the program with the features of the dev-dependencies, so the release build is
# measured instead.
bench-cluster: build control-plane ## measure propagation and memory with a real kube-apiserver (BENCH_ONLY=propagation: one part)
	mkdir -p target/bench && cp target/release/lb-linker target/bench/lb-linker
	LB_LINKER_TEST_PROGRAM="$(CURDIR)/target/bench/lb-linker" cargo bench --locked --bench cluster

chaos: has-linker ## repeat faults under load, against the release build, and print what was seen (about 50 minutes)
	tests/chaos

# The copy stays the same while the hour lasts, whatever is built meanwhile.
soak: build control-plane ## disturb two replicas at random for an hour at 2,000 queries/s (LB_LINKER_SOAK_MINUTES=60)
	mkdir -p target/soak && cp target/release/lb-linker target/soak/lb-linker
	cargo test --locked --test e2e --no-run
	LB_LINKER_SOAK_MINUTES=$(or $(LB_LINKER_SOAK_MINUTES),60) \
	    LB_LINKER_TEST_PROGRAM="$(CURDIR)/target/soak/lb-linker" \
	    cargo test --locked --test e2e -- --exact model::soak::soak_answers_match_the_model --nocapture

peers: build ## transfer zones to and from BIND, Knot and NSD (needs the Debian packages bind9, bind9-dnsutils, knot, nsd)
	tests/transfers/peers
	tests/transfers/primaries

lint: has-linker ## check format, lock files, lints, documentation, and the licenses and sources of dependencies
	cargo fmt --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	cargo clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items --locked
	tests/cargo-deny

docs: has-linker ## generate docs/plugins.md, docs/differences.md, outputs in docs/stub.md, copies of deploy/monitoring/files/
	LB_LINKER_WRITE_DOCS=1 cargo test --locked --lib --quiet plugins::tests::manuals
	LB_LINKER_WRITE_DOCS=1 cargo test --locked --lib --quiet stub::report
	LB_LINKER_WRITE_DOCS=1 cargo test --locked --test e2e --quiet differences_page
	LB_LINKER_WRITE_DOCS=1 cargo test --locked --test architecture --quiet copies_of_rules_and_dashboard

crd: ## write the CRD of StableNames, deploy/crd/crd.yaml and the template of the chart, from src/api/
	LB_LINKER_WRITE_CRD=1 cargo test --locked --test architecture --quiet crd_in_deploy

control-plane: ## build what the tests need: etcd, kube-apiserver, kubectl, CoreDNS (needs Go, once)
	tests/control-plane/build

stubs: ## build the tests' clients: look-ups by glibc's, musl's and Go's resolver (once)
	tests/stubs/build

go-programs: ## build what tests compare with: Go's text/template, and another DNS library (once)
	tests/go/build

helm: ## build Helm 3 and Helm 4, for the tests of the chart (once)
	tests/helm/build

promtool: ## build promtool, for the tests of deploy/monitoring/ (once)
	tests/prometheus/build

previous: has-linker ## build the last version without StableNames, for the test of upgrades (once; needs the history of git)
	tests/previous/build

fuzz: has-linker has-cargo-fuzz ## fuzz what comes from clients, upstreams, files and the API server, FUZZ_SECONDS=60 for each of fuzz/targets
	@for target in $(FUZZ_TARGETS); do \
	    mkdir -p "fuzz/corpus/$$target" && \
	    cargo fuzz run --sanitizer none "$$target" "fuzz/corpus/$$target" "fuzz/seeds/$$target" \
	        -- -timeout=10 -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

# The fuzzed code has no unsafe code that a sanitizer could check, and without a sanitizer stable Rust suffices.
has-cargo-fuzz:
	@command -v cargo-fuzz >/dev/null || { \
	    echo "fuzzing needs cargo-fuzz, and it isn't on the PATH: cargo install --locked cargo-fuzz" >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || { \
	    echo "cargo-fuzz needs a C++ compiler, and there is no $${CXX:-c++} on the PATH: install g++ or clang (on Debian and Ubuntu: apt-get install build-essential)" >&2; exit 1; }

# Reports a missing tool, and how to install it, before anything is built.
has-rust:
	@command -v cargo >/dev/null || { \
	    echo "lb-linker needs Rust $(RUST) or newer, and there is no cargo on the PATH: install it from https://rustup.rs" >&2; exit 1; }
	@version=$$(rustc --version | cut -d ' ' -f 2); \
	[ "$$(printf '%s\n' "$(RUST)" "$$version" | sort -V | head -n 1)" = "$(RUST)" ] || { \
	    echo "lb-linker needs Rust $(RUST) or newer, and this is Rust $${version:-unknown}: get a newer one with 'rustup update', or from https://rustup.rs" >&2; exit 1; }

has-linker: has-rust
	@command -v "$${CC:-cc}" >/dev/null || { \
	    echo "Rust needs a C compiler to link with, and there is no $${CC:-cc} on the PATH: install gcc or clang (on Debian and Ubuntu: apt-get install build-essential)" >&2; exit 1; }
