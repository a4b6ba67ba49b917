// Package dist tests the portable builds of make dist, where they are there and of this tree. Programs of other machines run by
// what Debian's packages bring; where those cannot be had, a test is skipped and says why.
package dist

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const library = "libgpreempt.so"

var (
	root          string // of the repository
	zig           string
	files         = []string{library, "gpreempt", "gpreempt-bench"}
	services      = []string{"gpreemptd", "gpreempt-nri", "gpreempt-metrics"} // without C
	architectures = []string{"amd64", "arm64"}
)

const patience = 2 * time.Minute // for what a loaded machine emulates

// current says why the files of make dist cannot be tested, "" if they are of this tree. It finds the repository and the compiler.
var current = sync.OnceValue(func() string {
	var err error
	if root, err = filepath.Abs("../.."); err != nil {
		return err.Error()
	}
	question := []string{"-s", "-q", "-C", root, "ARCHS=" + strings.Join(architectures, " ")}
	for _, architecture := range architectures {
		for _, file := range files {
			question = append(question, filepath.Join("build/dist", architecture, file))
		}
	}
	if exec.Command("make", question...).Run() != nil {
		return "build/dist is not there, or is not of this tree: make check-dist"
	}
	zig = filepath.Join(root, "build/tools/zig/bin/zig")
	return ""
})

// built is the folder with an architecture's files. It skips the test where they are not there, or older than the tree.
func built(t *testing.T, architecture string) string {
	t.Helper()
	if why := current(); why != "" {
		t.Skip(why)
	}
	return filepath.Join(root, "build/dist", architecture)
}

// debian unpacks a package of this system's Debian or Ubuntu below build/. It skips the test where it cannot be had.
func debian(t *testing.T, name string) string {
	t.Helper()
	folder := filepath.Join(root, "build", "debian", name)
	if _, err := os.Stat(folder); err == nil {
		return folder
	}
	fresh := t.TempDir()
	download := exec.Command("apt-get", "-qq", "download", name)
	download.Dir = fresh
	if out, err := download.CombinedOutput(); err != nil {
		t.Skipf("apt-get download %s: %v %s", name, err, bytes.TrimSpace(out))
	}
	found, err := filepath.Glob(filepath.Join(fresh, "*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("apt-get download %s brought %q, %v", name, found, err)
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		t.Fatal(err)
	}
	unpacked := folder + ".unpacking"
	if out, err := exec.Command("dpkg-deb", "-x", found[0], unpacked).CombinedOutput(); err != nil {
		t.Skipf("dpkg-deb -x %s: %v %s", found[0], err, out)
	}
	if err := os.Rename(unpacked, folder); err != nil {
		t.Fatal(err)
	}
	return folder
}

// compile runs the compiler of make dist in the repository.
func compile(t *testing.T, arguments ...string) {
	t.Helper()
	command := exec.Command(zig, arguments...)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("zig %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
}

// The library of each architecture shows what exports.map names, and nothing else.
func TestExports(t *testing.T) {
	for _, architecture := range architectures {
		folder := built(t, architecture)
		names, err := os.ReadFile(filepath.Join(root, "exports", "exports.map"))
		if err != nil {
			t.Fatal(err)
		}
		var want, got []string
		for line := range strings.Lines(string(names)) {
			if name, is := strings.CutSuffix(strings.TrimSpace(line), ";"); is && name != "*" && name != "}" {
				want = append(want, name)
			}
		}
		file, err := elf.Open(filepath.Join(folder, library))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		symbols, err := file.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, symbol := range symbols {
			if symbol.Section != elf.SHN_UNDEF {
				got = append(got, symbol.Name)
			}
		}
		for _, name := range got {
			if !slices.ContainsFunc(want, func(pattern string) bool { is, err := path.Match(pattern, name); return is && err == nil }) {
				t.Errorf("%s exports %s, which exports.map does not name", architecture, name)
			}
		}
		for _, pattern := range want {
			if !slices.ContainsFunc(got, func(name string) bool { is, err := path.Match(pattern, name); return is && err == nil }) {
				t.Errorf("%s does not export %s", architecture, pattern)
			}
		}
		if len(want) < 100 {
			t.Errorf("exports.map names %d symbols: it is read wrongly", len(want))
		}
	}
}

// A build that has facts of the machine that made it would differ from a build elsewhere.
func TestNoTraces(t *testing.T) {
	for _, architecture := range architectures {
		folder := built(t, architecture)
		for _, name := range files {
			content, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				t.Fatal(err)
			}
			if at := bytes.Index(content, []byte(root)); at >= 0 {
				t.Errorf("%s/%s has a path of this machine: %.100q", architecture, name, content[at:])
			}
			file, err := elf.NewFile(bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[architecture]; file.Machine != want {
				t.Errorf("%s/%s is for %v", architecture, name, file.Machine)
			}
			for _, section := range file.Sections {
				if section.Name == ".note.go.buildid" || strings.HasPrefix(section.Name, ".debug") {
					t.Errorf("%s/%s has %s", architecture, name, section.Name)
				}
			}
		}
	}
}

// machine runs programs of an architecture, natively or emulated, on a simulated GPU.
type machine struct {
	t      *testing.T
	target string
	runner []string // what runs a program, and its options
	folder string   // the builds
	dir    string   // the driver, programs, segments
}

func newMachine(t *testing.T, architecture string) *machine {
	t.Helper()
	m := &machine{t: t, folder: built(t, architecture), dir: t.TempDir()}
	switch architecture {
	case "amd64":
		m.target = "x86_64-linux-gnu.2.28" // memfd_create, which the simulated driver calls, came with 2.27
	case "arm64":
		m.target = "aarch64-linux-gnu.2.28"
		m.runner = []string{filepath.Join(debian(t, "qemu-user-static"), "usr/bin/qemu-aarch64-static"),
			"-L", filepath.Join(debian(t, "libc6-arm64-cross"), "usr/aarch64-linux-gnu")}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(m.dir, "segments"), 0o700), os.Mkdir(filepath.Join(m.dir, "sim"), 0o700),
		os.WriteFile(filepath.Join(m.dir, "gpreempt.toml"), fmt.Appendf(nil, "[segment]\ndirectory = %q\n", filepath.Join(m.dir, "segments")), 0o600)); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) program(source string) string {
	m.t.Helper()
	program := filepath.Join(m.dir, strings.TrimSuffix(filepath.Base(source), ".c"))
	compile(m.t, "cc", "-target", m.target, "-O1", "-std=gnu11", "-o", program, source, "-ldl", "-lpthread")
	return program
}

// driver builds the simulated driver. The compiler's own way to the linker refuses --dynamic-list.
func (m *machine) driver() {
	m.t.Helper()
	sources, err := filepath.Glob(filepath.Join(root, "test/simcuda/driver/*.c"))
	if err != nil || len(sources) == 0 {
		m.t.Fatalf("sources of the driver: %d, %v", len(sources), err)
	}
	object := filepath.Join(m.dir, "driver.o")
	compile(m.t, append([]string{"cc", "-target", m.target, "-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-r", "-o", object,
		"cluster/dist/testdata/atfork.c"}, sources...)...)
	compile(m.t, "ld.lld", "-shared", "-soname", "libcuda.so.1", "-z", "nodelete",
		"--dynamic-list=test/simcuda/driver/interposable.list", "-o", filepath.Join(m.dir, "libcuda.so.1"), object)
}

// command is a program under some libraries; a role of "" leaves GPREEMPT_PRIORITY unset.
func (m *machine) command(role string, libraries []string, program ...string) *exec.Cmd {
	arguments := slices.Concat(m.runner, program)
	command := exec.CommandContext(m.t.Context(), arguments[0], arguments[1:]...)
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir, "GPREEMPT_CONFIG=" + filepath.Join(m.dir, "gpreempt.toml"),
		"SIMCUDA_DIR=" + filepath.Join(m.dir, "sim"), "LD_LIBRARY_PATH=" + m.dir, "LD_PRELOAD=" + strings.Join(libraries, ":")}
	if role != "" {
		command.Env = append(command.Env, "GPREEMPT_PRIORITY="+role)
	}
	return command
}

// process is a worker of the e2e tests, which obeys lines.
type process struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func (m *machine) start(role, worker string) *process {
	m.t.Helper()
	command := m.command(role, []string{filepath.Join(m.folder, library), filepath.Join(m.dir, "libcuda.so.1")}, worker)
	command.Env = append(command.Env, "GPREEMPT_LOG=debug")
	return m.run(command)
}

// run starts a worker. A test that fails shows what its workers have said.
func (m *machine) run(command *exec.Cmd) *process {
	m.t.Helper()
	p, said := &process{t: m.t, command: command}, &clitest.Output{}
	p.command.Stderr = said
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("%q says\n%s", command.Args, said)
		}
	})
	var err error
	if p.in, err = p.command.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.command.Start(); err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (p *process) ask(line string) string {
	p.t.Helper()
	fmt.Fprintln(p.in, line)
	answer, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(answer)
}

// end closes the input and waits for the program.
func (p *process) end() {
	p.t.Helper()
	p.in.Close()
	if _, err := io.Copy(io.Discard, p.out); err != nil {
		p.t.Error(err)
	}
	if err := p.command.Wait(); err != nil {
		p.t.Error(err)
	}
}

// peers are the processes that gpreempt top of the architecture shows, by PID. Another architecture's command cannot read these segments:
// its pages are of another size.
func (m *machine) peers() map[int]segment.Peer {
	m.t.Helper()
	command := m.command("", nil, filepath.Join(m.folder, "gpreempt"), "top", "--once", "--json")
	out, err := command.Output()
	var shown struct {
		GPUs []struct{ Peers []segment.Peer }
	}
	if err := errors.Join(err, json.Unmarshal(out, &shown)); err != nil {
		m.t.Fatalf("%q: %v\n%s", command.Args, err, out)
	}
	found := map[int]segment.Peer{}
	for _, gpu := range shown.GPUs {
		for _, peer := range gpu.Peers {
			found[int(peer.Pid)] = peer
		}
	}
	return found
}

// A latency-critical and a best-effort program of each architecture: BE gives way, LC opens windows, and computes what it does
// without the library.
func TestPrograms(t *testing.T) {
	for _, architecture := range architectures {
		t.Run(architecture, func(t *testing.T) {
			m := newMachine(t, architecture)
			m.driver()
			worker := m.program("test/e2e/testdata/worker.c")
			const requests = "lc 5 3 40 3000 stream"
			alone := m.start("", worker)
			_, without, _ := strings.Cut(alone.ask(requests), " hash ")
			alone.end()

			be, lc := m.start("be", worker), m.start("lc", worker)
			if answer := be.ask("be"); answer != "running 1" {
				t.Fatalf("be: %s", answer)
			}
			_, with, _ := strings.Cut(lc.ask(requests), " hash ")
			if with != without || with == "" {
				t.Errorf("LC computes %q, without the library %q", with, without)
			}
			for deadline := time.Now().Add(patience); ; lc.ask(requests) {
				found := m.peers()
				if found[be.command.Process.Pid].TimesliceUs == 1 && found[lc.command.Process.Pid].Counters.Windows > 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("BE does not give way: %+v", found)
				}
			}
			lc.end()
			be.end()
		})
	}
}

// The commands of each architecture start; programs of each take the library by a path with $LIB.
func TestStart(t *testing.T) {
	for _, architecture := range architectures {
		t.Run(architecture, func(t *testing.T) {
			m := newMachine(t, architecture)
			for _, command := range append(files[1:len(files):len(files)], services...) {
				if out, err := m.command("", nil, filepath.Join(m.folder, command), "--version").CombinedOutput(); err != nil || !bytes.Contains(out, []byte(" version ")) {
					t.Errorf("%s --version: %v %s", command, err, out)
				}
			}
			said(t, m.command("be", []string{installed(t, m.folder)}, m.program("cluster/dist/testdata/hello.c")), "hello 1\n")
		})
	}
}

// A loader that puts lib64 for $LIB, as those of Fedora and SUSE do, finds the library too.
func TestLib64(t *testing.T) {
	m := newMachine(t, "amd64")
	libc := filepath.Join(debian(t, "libc6-amd64-i386-cross"), "usr/i686-linux-gnu/lib64")
	loader := []string{filepath.Join(libc, "ld-linux-x86-64.so.2"), "--library-path", libc}
	path, hello := installed(t, m.folder), m.program("cluster/dist/testdata/hello.c")
	said(t, m.command("be", []string{path}, append(loader, hello)...), "hello 1\n")
	prefix, _, _ := strings.Cut(path, "$LIB")
	if err := os.RemoveAll(filepath.Join(prefix, "lib64")); err != nil {
		t.Fatal(err)
	}
	if out, err := m.command("be", []string{path}, append(loader, hello)...).CombinedOutput(); err != nil || !bytes.HasSuffix(out, []byte("hello 0\n")) {
		t.Errorf("without lib64: %s, %v", out, err)
	}
}

// Programs for which the library is not made run unchanged, under the path with $LIB: static ones, which load nothing, and those of musl,
// whose loader ends them if it finds the library. The plain path shows that.
func TestPassedBy(t *testing.T) {
	m := newMachine(t, "amd64")
	path := installed(t, m.folder)
	static, dynamic := filepath.Join(m.dir, "static"), filepath.Join(m.dir, "dynamic")
	development := filepath.Join(debian(t, "musl-dev"), "usr")
	loader := filepath.Join(debian(t, "musl"), "lib", "ld-musl-x86_64.so.1")
	for program, libc := range map[string]string{static: filepath.Join(development, "lib/x86_64-linux-musl/libc.a"), dynamic: loader} {
		start := filepath.Join(development, "lib/x86_64-linux-musl/crt1.o")
		command := exec.Command("gcc", "-O1", "-fno-stack-protector", "-no-pie", "-nostdinc", "-isystem", filepath.Join(development, "include/x86_64-linux-musl"), "-nostdlib",
			"-Wl,--dynamic-linker="+loader, "-o", program, start, "testdata/hello.c", libc)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	said(t, m.command("be", []string{path}, static), "hello 0\n")
	said(t, m.command("be", []string{path}, dynamic), "hello 0\n")
	if out, err := m.command("be", []string{filepath.Join(m.folder, library)}, dynamic).CombinedOutput(); err == nil {
		t.Errorf("under the plain path: %s", out)
	}
}

// said fails the test unless a command ends well and says just this.
func said(t *testing.T, command *exec.Cmd, want string) {
	t.Helper()
	if out, err := command.CombinedOutput(); err != nil || string(out) != want {
		t.Errorf("%q says %q, %v; want %q", command.Args, out, err, want)
	}
}

// installed puts a library where make install would, and returns what LD_PRELOAD is to name.
func installed(t *testing.T, folder string) string {
	t.Helper()
	all, err := os.ReadFile(filepath.Join(root, "packaging", "gpreempt.files"))
	if err != nil {
		t.Fatal(err)
	}
	var some strings.Builder
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, library) && !strings.HasPrefix(line, "#") {
			some.WriteString(line)
		}
	}
	prefix, list := t.TempDir(), filepath.Join(t.TempDir(), "files")
	if err := os.WriteFile(list, []byte(some.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("packaging/install.sh", "install", prefix, folder, list)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("install: %v %s", err, out)
	}
	return filepath.Join(prefix, "lib/gpreempt/$LIB", library)
}
