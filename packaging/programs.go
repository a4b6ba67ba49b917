package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// program is one of the binaries.
type program struct {
	name  string
	sum   string // SHA-256, in hex
	glibc string // the oldest that it runs with: 2.17; "" for a static one
	built *debug.BuildInfo
}

// inspect reads the binaries of every architecture, and refuses binaries of another one.
func (j *job) inspect() (map[string][]program, error) {
	all := map[string][]program{}
	for arch := range j.binaries {
		files, err := j.files(arch, parts...)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if !f.built {
				continue
			}
			p, err := inspect(f.source, arch)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.source, err)
			}
			all[arch] = append(all[arch], p)
		}
		if newestGlibc(all[arch]) == "" {
			return nil, fmt.Errorf("%s: no binary asks for a version of glibc", arch)
		}
	}
	return all, nil
}

func inspect(path, arch string) (p program, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return p, err
	}
	p.name, p.sum = filepath.Base(path), fmt.Sprintf("%x", sha256.Sum256(data))
	if p.built, err = buildinfo.Read(bytes.NewReader(data)); err != nil {
		return p, err
	}
	binary, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return p, err
	}
	if machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; binary.Machine != machine {
		return p, fmt.Errorf("is for %v, not for %s", binary.Machine, arch)
	}
	p.glibc, err = glibcOf(binary)
	return p, err
}

// glibcOf is the newest version of glibc that a binary asks for, "" if it asks for none.
func glibcOf(binary *elf.File) (newest string, err error) {
	if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) == 0 {
		return "", err
	}
	needs, err := binary.DynamicVersionNeeds()
	for _, library := range needs {
		for _, need := range library.Needs {
			if version, is := strings.CutPrefix(need.Dep, "GLIBC_"); is && compareVersions(version, newest) > 0 {
				newest = version
			}
		}
	}
	return newest, err
}

// newestGlibc is the glibc that all of some programs run with, "" if they are static.
func newestGlibc(programs []program) string {
	if len(programs) == 0 {
		return ""
	}
	return slices.MaxFunc(programs, func(a, b program) int { return compareVersions(a.glibc, b.glibc) }).glibc
}

// compareVersions compares versions of numbers, 2.17 with 2.3.2.
func compareVersions(a, b string) int {
	numbers := func(version string) (list []int) {
		for part := range strings.SplitSeq(version, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				n = -1
			}
			list = append(list, n)
		}
		return list
	}
	return slices.Compare(numbers(a), numbers(b))
}

// own is the module of the library, which programs of other modules contain.
const own = "github.com/gpreempt/gpreempt"

// standard is the path of Go's own library, among modules.
const standard = "stdlib"

// modules lists the Go modules compiled into some programs, each once.
func modules(programs map[string][]program) (list []debug.Module) {
	add := func(path, version string) {
		if m := (debug.Module{Path: path, Version: version}); !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	for _, some := range programs {
		for _, p := range some {
			add(standard, strings.TrimPrefix(p.built.GoVersion, "go"))
			for _, dep := range p.built.Deps {
				if dep.Path == own {
					continue
				}
				if dep.Replace != nil {
					dep = dep.Replace
				}
				add(dep.Path, dep.Version)
			}
		}
	}
	slices.SortFunc(list, func(a, b debug.Module) int { return strings.Compare(a.Path+"@"+a.Version, b.Path+"@"+b.Version) })
	return list
}

var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([._-].*)?$`)

// writeLicenses writes the licenses of the compiled-in modules, which ask for that.
func (j *job) writeLicenses(programs map[string][]program) error {
	found := modules(programs)
	folders, err := j.moduleFolders(found)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	fmt.Fprintln(&text, "gpreempt's programs and library contain Go's own library and the modules below, under these licenses.")
	for _, m := range found {
		if err := addLicenses(&text, m.Path+" "+m.Version, folders[m]); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(j.generated, licensesName), text.Bytes(), 0o644)
}

// moduleFolders asks Go where it keeps the sources of modules.
func (j *job) moduleFolders(list []debug.Module) (map[debug.Module]string, error) {
	goRoot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	arguments, folders := []string{"mod", "download", "-json"}, map[debug.Module]string{}
	for _, m := range list {
		if m.Path == standard {
			folders[m] = strings.TrimSpace(string(goRoot))
		} else {
			arguments = append(arguments, m.Path+"@"+m.Version)
		}
	}
	command := exec.Command("go", arguments...)
	command.Dir = j.root
	said, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w", err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(said)); ; {
		var module struct{ Path, Version, Dir string }
		if err := decoder.Decode(&module); errors.Is(err, io.EOF) {
			return folders, nil
		} else if err != nil {
			return nil, fmt.Errorf("go mod download: %w", err)
		}
		folders[debug.Module{Path: module.Path, Version: module.Version}] = module.Dir
	}
}

func addLicenses(out io.Writer, name, folder string) error {
	entries, err := os.ReadDir(folder) // sorted
	if err != nil {
		return err
	}
	found := 0
	for _, entry := range entries {
		if entry.IsDir() || !licenseName.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return err
		}
		found++
		fmt.Fprintf(out, "\n\n==== %s: %s\n\n%s", name, entry.Name(), text)
	}
	if found == 0 {
		return fmt.Errorf("%s has no license in %s", name, folder)
	}
	return nil
}
