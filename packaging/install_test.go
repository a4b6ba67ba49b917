package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Packages are installed, used, upgraded and removed, below folders of the tests' own.

// native is the folder of this machine's binaries.
func native(t *testing.T) string {
	t.Helper()
	if made.binaries[runtime.GOARCH] == "" {
		t.Skipf("GPREEMPT_BINARIES names none for %s", runtime.GOARCH)
	}
	return made.binaries[runtime.GOARCH]
}

// do runs a command that must succeed, with a clean environment plus env.
func do(t *testing.T, env []string, command ...string) string {
	t.Helper()
	out, err := try(env, command...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return out
}

func try(env []string, command ...string) (string, error) {
	c := exec.Command(command[0], command[1:]...)
	c.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// below lists the contents of a folder, by path from there, with the sizes of files.
func below(t *testing.T, folder string) map[string]string {
	t.Helper()
	list := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if name := strings.TrimPrefix(path, folder); name != "" && err == nil {
			list[name] = fmt.Sprint(info.Mode().Type())
			if info.Mode().IsRegular() {
				list[name] = fmt.Sprint(info.Size())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// use tries the installation below a prefix, on the simulated driver: LD_PRELOAD is as gpreempt run sets it.
func use(t *testing.T, prefix, library, preloads, version string) {
	t.Helper()
	command := filepath.Join(prefix, "bin", "gpreempt")
	// The build may be of any commit, tagged or not. The library and the command are of the same one.
	said := do(t, nil, command, "version")
	built, _, _ := strings.Cut(strings.TrimPrefix(said, "gpreempt  "), ",")
	if !strings.Contains(said, "\nlibrary   "+filepath.Join(prefix, library)+", "+built+"\n") {
		t.Errorf("version: %s", said)
	}
	if said := do(t, nil, command, "run", "--priority", "be", "--", "sh", "-c", `echo "$LD_PRELOAD"; grep -c libgpreempt.so /proc/self/maps >/dev/null && echo mapped`); said != filepath.Join(prefix, preloads)+"\nmapped\n" {
		t.Errorf("%s: run: %s", version, said)
	}
	if said := do(t, nil, command, "bench", "--help"); !strings.Contains(said, "Usage: gpreempt bench [flags]") {
		t.Errorf("%s: bench: %s", version, said)
	}
	simulated, err := filepath.Abs("../build/sim/libcuda.so.1")
	config := filepath.Join(t.TempDir(), "gpreempt.toml")
	if err := errors.Join(err, os.WriteFile(config, []byte("segment.directory = \""+t.TempDir()+"\"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	said = do(t, []string{"GPREEMPT_CONFIG=" + config, "SIMCUDA_DIR=" + t.TempDir(), "LD_LIBRARY_PATH=" + filepath.Dir(simulated),
		"LD_PRELOAD=" + filepath.Join(prefix, library) + ":" + simulated}, command, "doctor")
	if !strings.Contains(said, "\nok    picked     \"auto\" picks ") || strings.Contains(said, "fail  ") {
		t.Errorf("%s: doctor:\n%s", version, said)
	}
}

const (
	installed = "lib/gpreempt/lib/libgpreempt.so"
	byName    = "lib/gpreempt/$LIB/libgpreempt.so"
)

// gone is a file that version 1.2.2 of the tests has, and later ones have no more.
const gone = "share/gpreempt/of-1.2.2"

// older makes a deb or an rpm of version 1.2.2, for this machine.
func older(t *testing.T, form string, p part) (path string) {
	t.Helper()
	j := newJob(t.TempDir(), "v1.2.2")
	j.generated, j.out = t.TempDir(), t.TempDir()
	programs, err := j.inspect()
	if err != nil {
		t.Fatal(err)
	}
	files, err := j.files(runtime.GOARCH, p)
	if err == nil {
		err = j.writeLicenses(programs)
	}
	if err == nil {
		err = j.writeNative(form, runtime.GOARCH, p, append(files, file{place: gone, source: "packaging_test.go", mode: 0o644}), programs[runtime.GOARCH])
	}
	found, globErr := filepath.Glob(filepath.Join(j.out, "*."+form))
	if err := errors.Join(err, globErr); err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	return found[0]
}

// A deb is installed, upgraded and removed by dpkg below a folder that is a Debian with a glibc and nothing else.
func TestDebianInstalls(t *testing.T) {
	native(t)
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is not installed")
	}
	if _, err := exec.LookPath("fakeroot"); err != nil && os.Geteuid() != 0 {
		t.Skip("dpkg gives files to root: this needs root, or fakeroot")
	}
	root := t.TempDir()
	admin := filepath.Join(root, "var/lib/dpkg")
	const glibc = "Package: libc6\nStatus: install ok installed\nMaintainer: x <x@x>\nArchitecture: %s\nVersion: %s\nDescription: x\n\n"
	status := func(version string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(admin+"/updates", 0o755), os.MkdirAll(admin+"/info", 0o755), os.WriteFile(admin+"/available", nil, 0o644),
			os.WriteFile(admin+"/status", fmt.Appendf(nil, glibc, runtime.GOARCH, version), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(arguments ...string) (string, error) {
		command := append([]string{"dpkg", "--root=" + root, "--force-not-root", "--log=/dev/null"}, arguments...)
		if os.Geteuid() != 0 {
			command = append([]string{"fakeroot"}, command...)
		}
		return try([]string{"DEBIAN_FRONTEND=noninteractive"}, command...)
	}
	must := func(arguments ...string) {
		t.Helper()
		if said, err := dpkg(arguments...); err != nil {
			t.Fatalf("dpkg %s: %v\n%s", arguments, err, said)
		}
	}
	before, after := older(t, "deb", parts[0]), only(t, "gpreempt_*_"+runtime.GOARCH+".deb")

	status("2.16-1")
	if said, err := dpkg("--install", after); err == nil || !strings.Contains(said, "gpreempt depends on libc6 (>= ") {
		t.Errorf("with an old glibc: %v\n%s", err, said)
	}
	must("--purge", "gpreempt")
	status("2.36-9")
	empty := system(t, root)
	must("--install", before)
	use(t, root+"/usr", installed, byName, "1.2.2")
	if _, err := os.Stat(root + "/usr/" + gone); err != nil {
		t.Error(err)
	}
	must("--install", after)
	use(t, root+"/usr", installed, byName, "1.2.3")
	if _, err := os.Stat(root + "/usr/" + gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left of 1.2.2: %v", gone, err)
	}
	if said, err := dpkg("--verify", "gpreempt"); err != nil || said != "" {
		t.Errorf("verify: %v, %s", err, said)
	}
	must("--install", older(t, "deb", parts[1]))
	policy := filepath.Join(root, policyPlace)
	changed := []byte("[default]\nlevel = 3\n")
	if err := os.WriteFile(policy, changed, 0o644); err != nil {
		t.Fatal(err)
	}
	kept := func(when string) {
		t.Helper()
		if text, err := os.ReadFile(policy); err != nil || !bytes.Equal(text, changed) {
			t.Errorf("%s: the policy is %q, %v", when, text, err)
		}
	}
	must("--install", only(t, "gpreemptd_*_"+runtime.GOARCH+".deb"))
	kept("upgraded")
	if said := do(t, nil, root+"/usr/sbin/gpreemptd", "--check", "--policy", policy); said != policy+": no mistakes\n" {
		t.Error(said)
	}
	must("--remove", "gpreemptd")
	kept("removed")
	must("--purge", "gpreemptd")
	must("--remove", "gpreempt")
	must("--purge", "gpreempt")
	if left := system(t, root); !maps.Equal(left, empty) {
		t.Errorf("left: %q, before: %q", left, empty)
	}
	if text, err := os.ReadFile(admin + "/status"); err != nil || strings.Contains(string(text), "gpreempt") {
		t.Errorf("dpkg still knows: %v\n%s", err, text)
	}
}

// system lists the files below a root that are not dpkg's own.
func system(t *testing.T, root string) map[string]string {
	t.Helper()
	all := below(t, root)
	maps.DeleteFunc(all, func(name, _ string) bool { return strings.HasPrefix(name, "/var/lib/dpkg") })
	return all
}

// rpmBelow runs rpm, with --root and what follows: the system's, or Debian's without its being installed. It skips the test where there is
// neither.
func rpmBelow(t *testing.T, root string) func(arguments ...string) (string, error) {
	t.Helper()
	folder, err := filepath.Abs("../build/debian/rpm")
	if err != nil {
		t.Fatal(err)
	}
	command, env := []string{"rpm"}, []string(nil)
	if _, err := exec.LookPath("rpm"); err != nil {
		unpackRPM(t, folder)
		libraries, err := filepath.Glob(folder + "/usr/lib/*-linux-gnu")
		if err != nil || len(libraries) != 1 {
			t.Fatalf("libraries of rpm: %q, %v", libraries, err)
		}
		command, env = []string{folder + "/usr/bin/rpm"}, []string{"LD_LIBRARY_PATH=" + libraries[0], "RPM_CONFIGDIR=" + folder + "/usr/lib/rpm"}
	}
	return func(arguments ...string) (string, error) {
		return try(env, slices.Concat(command, []string{"--root", root, "--nosignature"}, arguments)...)
	}
}

// unpackRPM unpacks below a folder what an installation of rpm would bring to this Debian.
func unpackRPM(t *testing.T, folder string) {
	t.Helper()
	if _, err := os.Stat(folder); err == nil {
		return
	}
	fresh := t.TempDir()
	if err := os.MkdirAll(fresh+"/partial", 0o755); err != nil {
		t.Fatal(err)
	}
	if said, err := try(nil, "apt-get", "-qq", "-y", "--no-install-recommends", "--download-only", "-o", "Debug::NoLocking=1", "-o", "Dir::Cache::archives="+fresh, "install", "rpm"); err != nil {
		t.Skipf("rpm is not installed, and Debian's cannot be had: %v %s", err, said)
	}
	archives, err := filepath.Glob(fresh + "/*.deb")
	if err != nil || len(archives) == 0 {
		t.Fatalf("apt-get brought nothing: %v", err)
	}
	unpacked := folder + ".unpacking"
	if err := os.MkdirAll(unpacked, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, archive := range archives {
		do(t, nil, "dpkg-deb", "-x", archive, unpacked)
	}
	if err := os.Rename(unpacked, folder); err != nil {
		t.Fatal(err)
	}
}

// An rpm is installed, upgraded and removed by rpm below a folder with a data base of its own.
func TestRPMInstalls(t *testing.T) {
	native(t)
	root := t.TempDir()
	rpm := rpmBelow(t, root)
	run := func(arguments ...string) string {
		t.Helper()
		said, err := rpm(arguments...)
		if err != nil {
			t.Fatalf("rpm %q: %v\n%s", arguments, err, said)
		}
		return said
	}
	path := only(t, "gpreempt-*."+architectures[runtime.GOARCH].machine+".rpm")
	if said, err := rpm("--install", path); err == nil || !strings.Contains(said, "libc.so.6(GLIBC_") {
		t.Errorf("without a glibc: %v\n%s", err, said)
	}
	files := func() map[string]string {
		all := below(t, root)
		maps.DeleteFunc(all, func(name, _ string) bool {
			return strings.HasPrefix(name, "/var") || !strings.Contains(name, "gpreempt")
		})
		return all
	}
	run("--install", "--nodeps", older(t, "rpm", parts[0]))
	use(t, root+"/usr", installed, byName, "1.2.2")
	run("--upgrade", "--nodeps", path)
	use(t, root+"/usr", installed, byName, "1.2.3")
	if _, err := os.Stat(root + "/usr/" + gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left of 1.2.2: %v", gone, err)
	}
	if said := run("--verify", "--nodeps", "gpreempt"); said != "" {
		t.Errorf("verify: %s", said)
	}
	run("--install", only(t, "gpreemptd-*."+architectures[runtime.GOARCH].machine+".rpm"))
	policy := filepath.Join(root, policyPlace)
	if said := do(t, nil, root+"/usr/sbin/gpreemptd", "--check", "--policy", policy); said != policy+": no mistakes\n" {
		t.Error(said)
	}
	run("--erase", "gpreemptd", "gpreempt")
	if left := files(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// The archive's programs run where it is unpacked.
func TestArchiveRuns(t *testing.T) {
	native(t)
	folder := t.TempDir()
	path := only(t, "gpreempt-*-linux-"+runtime.GOARCH+".tar.gz")
	do(t, nil, "tar", "-xzf", path, "-C", folder)
	use(t, filepath.Join(folder, strings.TrimSuffix(filepath.Base(path), ".tar.gz")), installed, byName, "1.2.3")
}

// A wheel is installed by pip into an environment of its own, used, and removed.
func TestWheelInstalls(t *testing.T) {
	native(t)
	environment := filepath.Join(t.TempDir(), "venv")
	do(t, nil, "python3", "-m", "venv", "--without-pip", environment)
	pip := func(arguments ...string) {
		t.Helper()
		do(t, []string{"PIP_DISABLE_PIP_VERSION_CHECK=1", "PYTHONDONTWRITEBYTECODE=1", "PIP_ROOT_USER_ACTION=ignore"},
			slices.Concat([]string{"python3", "-m", "pip", "--python", environment + "/bin/python", "--quiet"}, arguments)...)
	}
	empty := below(t, environment)
	wheel := only(t, "gpreempt-*_"+architectures[runtime.GOARCH].machine+".whl")
	pip("install", "--no-index", "--no-compile", wheel)
	use(t, environment, "lib/libgpreempt.so", "lib/libgpreempt.so", "1.2.3")
	code := `
import gpreempt, subprocess, sys
print(gpreempt.hint(300))
done = gpreempt.run(["sh", "-c", "echo $GPREEMPT_PRIORITY; grep -c libgpreempt.so /proc/self/maps >/dev/null && echo mapped; exit 3"], priority=3, stdout=subprocess.PIPE, text=True)
print(done.returncode, done.stdout)
try:
    gpreempt.run(["false"], priority="be", check=True)
except subprocess.CalledProcessError as error:
    print("failed", error.returncode)
`
	if said := do(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, environment+"/bin/python", "-c", code); said != "False\n3 3\nmapped\n\nfailed 1\n" {
		t.Errorf("the module: %s", said)
	}
	pip("install", "--no-index", "--no-compile", "--force-reinstall", wheel)
	pip("uninstall", "--yes", "gpreempt")
	left := below(t, environment)
	maps.DeleteFunc(left, func(name, about string) bool {
		return empty[name] == about || name == "/include" || name == "/share" || strings.HasPrefix(name, "/share/man") && about == fmt.Sprint(fs.ModeDir)
	})
	if len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// The command refuses these, each in a line of its own.
func TestCommandRefuses(t *testing.T) {
	command := filepath.Join(t.TempDir(), "packaging")
	if out, err := exec.Command("go", "build", "-o", command, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range []struct {
		arguments []string
		want      string
	}{
		{nil, "no --binaries"},
		{[]string{"--binaries", "riscv64=x"}, "must be amd64=FOLDER or arm64=FOLDER"},
		{[]string{"--binaries", "amd64=x"}, `version ""`},
		{[]string{"--root", "..", "--binaries", "amd64=/none", "--version", "v1.0.0", "--out", t.TempDir()}, "/none/gpreempt: no such file"},
		{[]string{"--binaries", "amd64=/none", "--version", "v1.0.0", "--out", "."}, ". is neither empty nor of an earlier run"},
	} {
		var said bytes.Buffer
		run := exec.Command(command, c.arguments...)
		run.Stderr = &said
		if err := run.Run(); err == nil || !strings.Contains(said.String(), c.want) {
			t.Errorf("%q: %v, %s; want %s", c.arguments, err, &said, c.want)
		}
	}
}
