# `make help` lists the targets, CONTRIBUTING.md says what they are for.
PREFIX ?= /usr/local
GO ?= go
export GO
export GOWORK := off
CFLAGS ?= -O2 -g
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
VERSION := $(VERSION)# asked once: all of a build has one
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
COMMIT := $(COMMIT)
# Files that change with what they name. The library has the version of the time when it was built: nothing in it has changed since.
stamp = $(shell mkdir -p build; [ "$$(cat build/$(1) 2>/dev/null)" = "$(2)" ] || echo "$(2)" > build/$(1))
GO_AT := $(shell command -v $(GO))
$(if $(GO_AT),$(call stamp,version,$(VERSION))$(call stamp,go,$(shell $(GO) env GOVERSION GOROOT)),$(if $(filter-out help clean install uninstall,$(or $(MAKECMDGOALS),all)),$(error make needs Go 1.26 or 1.27 on the PATH (https://go.dev/dl), or GO=FILE)))

SERVICES := gpreemptd gpreempt-nri gpreempt-metrics
COMMANDS := gpreempt gpreempt-bench $(SERVICES)
COMPLETIONS := $(foreach c,gpreempt gpreempt-bench,$(foreach s,bash zsh fish,build/completion/$(c).$(s)))
all: $(addprefix build/,libgpreempt.so $(COMMANDS) memory-probe sim/libcuda.so.1 sim/libnvidia-ml.so.1) $(COMPLETIONS) ## the library, the commands and the simulated driver, into build/
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "%-16s %s\n", $$1, $$2}' Makefile
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*\#\# .*/\1/p' Makefile)

# A changed test builds no program.
GO_FILES := $(shell find . \( -path ./build -o -path ./packaging -o -path ./charts \) -prune -o -name '*.go' -print) $(wildcard go.* cluster/go.* test/bench/go.*)
GO_CODE := $(filter-out %_test.go ./test/suite/% ./test/simcuda/%,$(GO_FILES)) $(wildcard kernels/*.fatbin) kernels/guard/guard.json build/go
COMMANDS_CODE := $(GO_CODE) build/version $(wildcard cmd/gpreempt/*.[ch]) $(shell find test/bench/worker test/bench/torch test/bench/workload -type f)
LIBRARY_CODE := $(filter-out ./cmd/% ./cluster/% ./internal/% ./test/%,$(GO_CODE)) $(wildcard shim/*.c) shim/shim.h exports/link.sh exports/go_runtime.ld
CORE := $(filter-out %_test.c,$(wildcard preempt/*.c preempt/*/*.c hints/*.c))
EXPORTS := $(filter-out %_test.c,$(wildcard exports/*.c))
SIM := $(wildcard test/simcuda/driver/*.c)
# Go looks for changes in a package's own folder alone. So each package that includes C headers of others has a checksum of all headers.
CHECKSUMS := $(addsuffix headers_checksum.h,$(sort $(dir $(shell grep -lF 'CFLAGS: -std=gnu11 -I$${SRCDIR}/..' $(GO_FILES)))))
$(CHECKSUMS): $(shell find . \( -path ./build -o -path ./test \) -prune -o -name '*.h' -not -name headers_checksum.h -print)
	echo "// $$(cat $(sort $^) | sha256sum)" > $@

# $(1): folder; $(2): compiler; $(3): its flags; $(4): flags of Go's linker; $(5): exports; $(6): GOARCH; $(7): tool
define build
$(1)/c/%.o: %.c $(7)
	@mkdir -p $$(@D)
	$(2) $(3) $(C_FLAGS) -MMD -MP -c -o $$@ $$<
-include $$(wildcard $$(patsubst %.c,$(1)/c/%.d,$(CORE) $(EXPORTS)))
$(1)/core.a: $(CORE:%.c=$(1)/c/%.o)
$(1)/exports.a: $(EXPORTS:%.c=$(1)/c/%.o)
$(1)/core.a $(1)/exports.a: Makefile
	@rm -f $$@
	$(2) $(3) -r -o $$(@:.a=.o) $$(filter %.o,$$^) # one member: what only the program calls is linked too
	$(and $(7),$(ZIG)) ar rcs $$@ $$(@:.a=.o)
$(1)/libgpreempt.so: $(1)/core.a $(1)/exports.a $(LIBRARY_CODE) $(CHECKSUMS) $(5)
	GOARCH=$(6) CC='$(2)' CGO_CFLAGS='$(3)' exports/link.sh $$@ $(5) '$(VERSION)' '$(4)'
$(COMMANDS:%=$(1)/%): $(1)/%: $(COMMANDS_CODE) $(7)
	GOARCH=$(6) CC='$(2)' CGO_ENABLED=$$(if $$(filter $(SERVICES),$$*),0,1) $(GO) build -C $$(or $$(MODULE_$$*),cluster) -trimpath -buildvcs=false \
		-tags netgo -ldflags '$(4) -X main.version=$(VERSION) -X main.commit=$(COMMIT) -extldflags -s' -o $(CURDIR)/$$@ ./cmd/$$*
$(1)/sim/libcuda.so.1: $(SIM) $(wildcard test/simcuda/driver/* kernels/fill.* kernels/*/*.h)
	@mkdir -p $$(@D)
	$(2) $(3) $(SIM_FLAGS) -Wl,--dynamic-list=test/simcuda/driver/interposable.list -o $$@ $(SIM) -lpthread
$(1)/sim/libnvidia-ml.so.1: test/simcuda/nvml/nvml.c $(wildcard test/simcuda/driver/*.h)
	@mkdir -p $$(@D)
	$(2) $(3) $(SIM_FLAGS) -o $$@ $$<
endef
C_FLAGS := -std=gnu11 -Wall -Wextra -Wno-unused-parameter -fPIC -I.
SIM_FLAGS = -std=gnu11 -shared -fPIC -fvisibility=hidden -Wl,-soname,$$(@F) -Wl,-z,nodelete
MODULE_gpreempt := .
MODULE_gpreempt-bench := test/bench
$(eval $(call build,build,$(CC),$(CFLAGS),-s -w,exports/exports.map))
# Random programs say in its environment how long this one waits (preempt/blp/states.c).
$(eval $(call build,build/test,$(CC),$(CFLAGS) -DGP_TEST,,exports/exports.map))
# A sanitizer looks up libc's functions before the library runs. So the library's lookups have other names here, which tests call.
SANITIZERS := thread address
LOOKUPS := dlsym dlvsym dlopen
SANITIZE := -O1 -g -fno-omit-frame-pointer -Wno-tsan $(foreach l,$(LOOKUPS),-D$(l)=gp_$(l))
$(foreach s,$(SANITIZERS),$(eval $(call build,build/sanitize/$(s),$(CC),$(SANITIZE) -fsanitize=$(s),,build/sanitize/exports.map)))
build/sanitize/exports.map: exports/exports.map
	@mkdir -p $(@D)
	sed -E 's/^\t($(subst $() ,|,$(LOOKUPS)));/\tgp_\1;/' $< > $@
# Portable builds, from arm64's first glibc on. Two of one commit are equal, bit by bit.
GLIBC := 2.17
ARCHS ?= $(subst x86_64,amd64,$(subst aarch64,arm64,$(shell uname -m)))
ZIG := $(CURDIR)/build/tools/zig/bin/zig
$(foreach a,$(ARCHS),$(eval $(call build,build/dist/$(a),$(ZIG) cc -target $(if $(filter amd64,$(a)),x86_64,aarch64)-linux-gnu.$(GLIBC),-O2,-s -w -buildid= -B none,exports/exports.map,$(a),build/tools/zig/installed)))
build/tools/%/installed: test/pinned.sh
	$< $*

test: ## parts e2e, compute, race, unit, glibc. With GPREEMPT_DEEP=1, as in CI: more of each, and fuzz
vet: ## gofmt and go vet
unit: ## tests of packages and of the simulated driver
compute: ## tests that only compute: units of C with sanitizers, rewriting, models, and simulated machines of the agent
e2e: ## tests of processes under the library, on the simulated driver
race: ## tests of packages under the race detector
fuzz: ## every fuzzer, on FUZZ_INPUTS inputs
generator: ## random programs for TIME, stopped at random, against what CUDA promises
kills: ## random programs whose helper processes are killed KILLS times at random, in each state
sanitize: $(foreach f,libgpreempt.so sim/libcuda.so.1,$(SANITIZERS:%=build/sanitize/%/$(f))) ## e2e tests with the C parts under the thread and the address sanitizer
RUN := test vet unit compute e2e race fuzz generator kills
$(RUN): all
$(RUN) sanitize:
	@./test/run.sh $@
glibc: build/libgpreempt.so ## that the library asks for no glibc newer than 2.34
	@./test/glibc.sh 2.34 $<
mutants: build/core.a build/tools/mutator/installed ## breaks MUTANTS lines in each of FOLDERS: do tests notice? (test/README.md)
	nice build/tools/mutator/bin/python test/mutants/mutants.py $(MUTANTS:%=--count %) $(MUTANTS_SEED:%=--seed %) $(MUTANTS_SECONDS:%=--timeout %) $(MUTANTS_FLAGS) $(FOLDERS)
lint: vet build/tools/lint/installed ## pinned linters of Go, C, shell, Python and English, in build/
	./test/lint.sh
format: build/tools/lint/installed ## all C and CUDA, with clang-format
	build/tools/lint/bin/clang-format -i $$(git ls-files '*.c' '*.h' '*.cu')
demo: all ## what it does, in three scenes
	CC='$(CC)' ./test/demo.sh

generate: ## committed GPU code and tables, from their sources
	./kernels/generate.sh
	./test/simcuda/kernels/generate.sh
	sh exports/map.sh > exports/exports.map
	$(GO) generate ./configs
check-generated: ## that the committed GPU code is what the pinned compiler makes
	./kernels/check.sh
man: ## manual pages, from the commands and default.toml
	./test/run.sh -run TestManualIsCurrent ./cmd/... ./cluster/cmd/... ./test/bench/cmd/... -update
readme: ## tables and plots of the documents, from the committed results
	./test/run.sh -run 'TestDocumentsShow|TestHeadlineShows' ./test/bench/report -update
results: all ## measures all that docs/results.md shows (GPU, 40 minutes)
	./test/bench/results.sh
gpu-patch: build/gpreempt ## what compares rewritten kernels with their originals (GPU)
	./test/gpu/patch_check.sh

build/completion/%.bash build/completion/%.zsh build/completion/%.fish: build/%
	@mkdir -p $(@D)
	for shell in bash zsh fish; do $< completion $$shell > build/completion/$*.$$shell || exit; done
# Without Go, as sudo often is, it takes what is built.
install: $(if $(GO_AT),build/libgpreempt.so $(COMMANDS:%=build/%) $(COMPLETIONS)) ## the library, the commands, manuals and completions, into PREFIX
uninstall: ## takes from PREFIX what install put there
install uninstall:
	./packaging/install.sh $@ '$(DESTDIR)$(PREFIX)' build packaging/gpreempt.files packaging/gpreemptd.files
.PHONY: about-dist
about-dist:
	@./packaging/about.sh $(ARCHS)
dist: about-dist $(foreach a,$(ARCHS),$(addprefix build/dist/$(a)/,libgpreempt.so $(COMMANDS))) ## portable builds for ARCHS (this machine), glibc 2.17 or newer, into build/dist/
	./test/glibc.sh $(GLIBC) $(filter-out about-dist $(SERVICES:%=\%/%),$^)
check-dist: ## tests of the portable builds, with emulators and runtimes of Debian's packages
	$(MAKE) dist ARCHS="amd64 arm64"
	./test/run.sh -v ./cluster/dist
PACKAGED := $(foreach a,$(ARCHS),$(a)=$(CURDIR)/build/dist/$(a))
packages: about-dist dist $(COMPLETIONS) ## deb, rpm, archive, wheel, image, SBOM and checksums of what dist builds, into build/packages/
	$(GO) build -C packaging -o $(CURDIR)/build/packager .
	build/packager --version '$(VERSION)' --commit '$(COMMIT)' --time $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),0) --out build/packages $(PACKAGED:%=--binaries %)
	@cd build/packages && du -h *
check-packages: dist all $(COMPLETIONS) ## tests of packages: what is in them, that they install, work, and leave nothing
	GPREEMPT_BINARIES='$(PACKAGED)' ./test/run.sh ./packaging/...
check-chart: $(SERVICES:%=build/%) ## tests of the Helm chart, without a cluster
	./test/run.sh ./charts/...
clean: ## removes build/ and what else was built
	rm -rf build $(CHECKSUMS)

# test/gpu/README.md
.SECONDEXPANSION:
build/%-probe: $$(wildcard test/gpu/$$*_probe/*.[ch] test/gpu/probe/*.[ch]) kernels/bench.fatbin test/simcuda/kernels/sim.cubin
	$(CC) $(CFLAGS) $(C_FLAGS) -o $@ $(filter %.c,$^) -ldl -lpthread
