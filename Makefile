PREFIX ?= /usr/local
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GO ?= go
CC ?= gcc

# Go does not see changes of a header outside the package that includes it; a changed flag it does.
export CGO_CFLAGS := -O2 -g -DGP_HEADERS=$(shell cat exports/hooks.h preempt/segment.h | cksum | cut -d ' ' -f 1)

GO_SOURCES := $(shell find . -name '*.go' -not -path './build/*') go.mod go.sum
C_SOURCES := $(shell find exports preempt test/simcuda -name '*.[ch]' -o -name '*.def')
SIM_SOURCES := $(wildcard test/simcuda/driver/*.c)

.PHONY: all test demo install clean generate check-generated gpu-patch
all: build/libgpreempt.so build/gpreempt build/sim/libcuda.so.1

build/libgpreempt.so: $(GO_SOURCES) $(C_SOURCES) exports/exports.map kernels/hold.fatbin
	@mkdir -p build
	$(GO) build -buildmode=c-shared -trimpath \
		-ldflags '-s -w -extldflags "-Wl,--version-script=$(CURDIR)/exports/exports.map -Wl,-z,nodelete"' -o $@ ./shim
	@rm -f build/libgpreempt.h

build/gpreempt: $(GO_SOURCES) kernels/bench.fatbin kernels/guard/guard.json
	@mkdir -p build
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/gpreempt

build/sim/libcuda.so.1: $(SIM_SOURCES) $(wildcard test/simcuda/driver/*.h) test/simcuda/driver/interposable.list
	@mkdir -p build/sim
	$(CC) -O2 -std=gnu11 -shared -fPIC -fvisibility=hidden -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete \
		-Wl,--dynamic-list=test/simcuda/driver/interposable.list -o $@ $(SIM_SOURCES) -lpthread

# Everything that needs no GPU.
test: all
	$(GO) vet ./...
	$(GO) test -count=1 ./...
	./test/glibc.sh build/libgpreempt.so

# Co-locates a latency-critical and a best-effort process, on the GPU or, where there is none, on the
# simulated driver, and prints alone / default / gpreempt side by side.
demo: all
	./test/demo.sh

install: build/libgpreempt.so build/gpreempt
	install -D -m 0755 build/libgpreempt.so $(DESTDIR)$(PREFIX)/lib/libgpreempt.so
	install -D -m 0755 build/gpreempt $(DESTDIR)$(PREFIX)/bin/gpreempt
	install -D -m 0644 configs/default.toml $(DESTDIR)$(PREFIX)/share/doc/gpreempt/default.toml

# Regenerates the committed GPU code with the pinned compiler.
generate:
	GO=$(GO) ./kernels/generate.sh

# For CI: fails where the committed GPU code is not what the pinned compiler makes of its source.
check-generated:
	GO=$(GO) ./kernels/guard/check.sh

# What a machine with a GPU needs to compare rewritten kernels with their originals (test/gpu/README.md).
gpu-patch: build/gpreempt
	./test/gpu/patch_check.sh

clean:
	rm -rf build
