package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/blakesmith/ar"
	rpm "github.com/cavaliercoder/go-rpm"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The packages that the tests look at are made once, of the binaries that GPREEMPT_BINARIES names (amd64=FOLDER arm64=FOLDER).
var made *job

const madeAs = "v1.2.3-rc.1-4-gabcdef0"

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "gpreempt-packaging-test-")
	if err != nil {
		panic(err)
	}
	made = newJob(folder, madeAs)
	if err = made.run(); err != nil {
		fmt.Fprintln(os.Stderr, "packages of", made.binaries, "(make all first):", err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(folder)
	os.Exit(status)
}

func newJob(folder, given string) *job {
	version, err := parseVersion(given)
	if err != nil {
		panic(err)
	}
	binaries := map[string]string{}
	for one := range strings.FieldsSeq(os.Getenv("GPREEMPT_BINARIES")) {
		arch, folder, _ := strings.Cut(one, "=")
		binaries[arch] = folder
	}
	if len(binaries) == 0 {
		binaries["amd64"] = "../build"
	}
	return &job{root: "..", out: filepath.Join(folder, "packages"), version: version, commit: "abcdef0", time: time.Unix(1_700_000_001, 0).UTC(),
		binaries: binaries}
}

// entry is a file of a package, read back from it. A folder has neither.
type entry struct {
	mode fs.FileMode
	link string
	sum  string
}

// listed are the entries of some parts' lists, below a prefix; of all lists if no part is named.
func listed(t *testing.T, arch, prefix string, some ...part) map[string]entry {
	t.Helper()
	if len(some) == 0 {
		some = parts
	}
	files, err := made.files(arch, some...)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]entry{}
	for _, f := range files {
		e := entry{mode: f.mode, link: f.link}
		if data, err := os.ReadFile(f.source); err == nil {
			e.sum = sumOf(data)
		} else if f.link == "" && filepath.Base(f.source) != licensesName {
			t.Fatal(err)
		}
		all[prefix+f.place] = e
	}
	if len(all) < 7 || len(some) > 1 && len(all) < 30 {
		t.Fatalf("only %d files are listed", len(all))
	}
	return all
}

func sumOf(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// same compares the entries read back with the lists. Only the licenses of others are not in the lists.
func same(t *testing.T, got, want map[string]entry) {
	t.Helper()
	for place, w := range want {
		g, is := got[place]
		if strings.HasSuffix(place, "/"+licensesName) {
			w.sum = g.sum
		}
		if !is || g != w {
			t.Errorf("%s: %+v, want %+v", place, g, w)
		}
	}
	for place := range got {
		if _, is := want[place]; !is {
			t.Errorf("%s is in no list", place)
		}
	}
}

// only is the one package whose name fits a pattern.
func only(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(made.out, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// unzipped reads a tar.gz: its files, and the folders in it.
func unzipped(t *testing.T, from io.Reader) (files map[string]entry, folders []string, texts map[string]string) {
	t.Helper()
	plain, err := gzip.NewReader(from)
	if err != nil {
		t.Fatal(err)
	}
	files, texts = map[string]entry{}, map[string]string{}
	for archive := tar.NewReader(plain); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, folders, texts
		}
		if err != nil {
			t.Fatal(err)
		}
		if head.Uid != 0 || head.Gid != 0 || !head.ModTime.Equal(made.time) {
			t.Errorf("%s: of user %d, group %d, time %v", head.Name, head.Uid, head.Gid, head.ModTime)
		}
		name := strings.TrimPrefix(head.Name, ".")
		switch head.Typeflag {
		case tar.TypeDir:
			folders = append(folders, strings.TrimSuffix(name, "/"))
		case tar.TypeSymlink:
			files[name] = entry{mode: fs.FileMode(head.Mode) | fs.ModeSymlink, link: head.Linkname}
		default:
			data, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = entry{mode: fs.FileMode(head.Mode), sum: sumOf(data)}
			if len(data) < 1<<20 {
				texts[name] = string(data)
			}
		}
	}
}

func glibcOfArch(t *testing.T, arch string) string {
	t.Helper()
	programs, err := made.inspect()
	if err != nil {
		t.Fatal(err)
	}
	return newestGlibc(programs[arch])
}

// builtNames are the binaries of the lists.
func builtNames(t *testing.T, arch string) (names []string) {
	t.Helper()
	files, err := made.files(arch, parts...)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.built {
			names = append(names, filepath.Base(f.source))
		}
	}
	if !slices.Contains(names, "gpreempt") || !slices.Contains(names, "libgpreempt.so") {
		t.Fatalf("the lists have the binaries %q", names)
	}
	return names
}

// packages calls check for each package of a distribution.
func packages(t *testing.T, check func(t *testing.T, arch string, p part)) {
	t.Helper()
	for arch := range made.binaries {
		for _, p := range parts {
			t.Run(p.name+"_"+arch, func(t *testing.T) { check(t, arch, p) })
		}
	}
}

// withPolicy adds the policy that the package of the broker has beside the documented one.
func withPolicy(files map[string]entry) map[string]entry {
	if policy, is := files["/usr/"+policySource]; is {
		files[policyPlace] = policy
	}
	return files
}

func TestDeb(t *testing.T) {
	packages(t, func(t *testing.T, arch string, p part) {
		members := map[string][]byte{}
		for archive := ar.NewReader(open(t, only(t, p.name+"_1.2.3~rc1+4.gabcdef0_"+arch+".deb"))); ; {
			head, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if members[strings.Trim(head.Name, "/")], err = io.ReadAll(archive); err != nil {
				t.Fatal(err)
			}
		}
		if names := slices.Sorted(maps.Keys(members)); !slices.Equal(names, []string{"control.tar.gz", "data.tar.gz", "debian-binary"}) || string(members["debian-binary"]) != "2.0\n" {
			t.Fatalf("members %q", names)
		}
		control, _, texts := unzipped(t, bytes.NewReader(members["control.tar.gz"]))
		parts, needs := []string{"/control", "/md5sums"}, "Depends: libc6 (>= "+glibcOfArch(t, arch)+")\n" // no scripts
		if p.name == brokerName {
			parts, needs = []string{"/conffiles", "/control", "/md5sums"}, "Recommends: gpreempt\n"
			if texts["/conffiles"] != policyPlace+"\n" || strings.Contains(texts["/control"], "Depends: ") {
				t.Errorf("%q\n%s", texts["/conffiles"], texts["/control"])
			}
		}
		if names := slices.Sorted(maps.Keys(control)); !slices.Equal(names, parts) {
			t.Errorf("control members %q", names)
		}
		for _, want := range []string{"Package: " + p.name + "\n", "Version: 1.2.3~rc1+4.gabcdef0\n", "Architecture: " + arch + "\n", needs,
			"Maintainer: ", "Description: " + p.summary + "\n"} {
			if !strings.Contains(texts["/control"], want) {
				t.Errorf("no %q in\n%s", want, texts["/control"])
			}
		}
		files, folders, _ := unzipped(t, bytes.NewReader(members["data.tar.gz"]))
		same(t, files, withPolicy(listed(t, arch, "/usr/", p)))
		if own := map[string]string{"gpreempt": "/usr/lib/gpreempt/lib64", brokerName: "/etc/gpreempt"}[p.name]; !slices.Contains(folders, own) {
			t.Errorf("folders %q", folders)
		}
	})
}

func TestRPM(t *testing.T) {
	packages(t, func(t *testing.T, arch string, of part) {
		p, err := rpm.OpenPackageFile(only(t, of.name+"-1.2.3~rc1+4.gabcdef0-1."+architectures[arch].machine+".rpm"))
		if err != nil {
			t.Fatal(err)
		}
		got := []string{p.Name(), p.Version(), p.Release(), p.Architecture(), p.License(), p.URL(), p.BuildHost(), p.Summary()}
		if want := []string{of.name, "1.2.3~rc1+4.gabcdef0", "1", architectures[arch].machine, license, homepage, "localhost", of.summary}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if !p.BuildTime().Equal(made.time) {
			t.Errorf("built at %v", p.BuildTime())
		}
		if scripts := p.PreInstallScript() + p.PostInstallScript() + p.PreUninstallScript() + p.PostUninstallScript(); scripts != "" {
			t.Errorf("scripts %q", scripts)
		}
		needs := ""
		for _, need := range p.Requires() {
			needs += need.Name() + "\n"
		}
		if want := "libc.so.6(GLIBC_" + glibcOfArch(t, arch) + ")(64bit)\n"; strings.Contains(needs, want) == (of.name == brokerName) {
			t.Errorf("needs %q, not %q", needs, want)
		}
		links, sums := p.GetStrings(1, 1036), p.GetStrings(1, 1035) // RPMTAG_FILELINKTOS, RPMTAG_FILEDIGESTS
		files, own := map[string]entry{}, []string{}
		for i, f := range p.Files() {
			switch {
			case f.IsDir():
				own = append(own, f.Name())
			case links[i] != "":
				files[f.Name()] = entry{mode: fs.ModeSymlink | 0o777, link: links[i]}
			default:
				files[f.Name()] = entry{mode: f.Mode().Perm(), sum: sums[i]}
			}
			if f.Owner() != "root" || f.Group() != "root" || !f.ModTime().Equal(made.time) {
				t.Errorf("%s: of %s, %s, time %v", f.Name(), f.Owner(), f.Group(), f.ModTime())
			}
		}
		want := withPolicy(listed(t, arch, "/usr/", of))
		if of.name != brokerName {
			want["/usr/lib64/libgpreempt.so"] = entry{mode: fs.ModeSymlink | 0o777, link: "../lib/gpreempt/lib/libgpreempt.so"}
		}
		same(t, files, want)
		var ours []string // folders that no other package has
		for place := range want {
			for folder := filepath.Dir(place); strings.Contains(folder, "/gpreempt"); folder = filepath.Dir(folder) {
				ours = append(ours, folder)
			}
		}
		slices.Sort(own)
		slices.Sort(ours)
		if ours = slices.Compact(ours); len(ours) < 2 || !slices.Equal(own, ours) {
			t.Errorf("its folders are %q, must be %q", own, ours)
		}
		config := p.GetInts(1, 1037) // RPMTAG_FILEFLAGS
		for i, f := range p.Files() {
			const configNoReplace = 1 | 16
			if is := i < len(config) && config[i]&configNoReplace == configNoReplace; is != (f.Name() == policyPlace) {
				t.Errorf("%s: flags %v", f.Name(), config)
			}
		}
	})
}

func TestArchive(t *testing.T) {
	for arch := range made.binaries {
		name := "gpreempt-1.2.3-rc1-4.gabcdef0-linux-" + arch
		files, _, _ := unzipped(t, open(t, only(t, name+".tar.gz")))
		same(t, files, listed(t, arch, name+"/"))
	}
}

func TestWheel(t *testing.T) {
	for arch := range made.binaries {
		tag := "py3-none-manylinux_" + strings.ReplaceAll(glibcOfArch(t, arch), ".", "_") + "_" + architectures[arch].machine
		archive, err := zip.OpenReader(only(t, "gpreempt-1.2.3rc1+4.gabcdef0-"+tag+".whl"))
		if err != nil {
			t.Fatal(err)
		}
		defer archive.Close()
		texts, record := map[string]string{}, ""
		for _, f := range archive.File {
			in, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			texts[f.Name] = string(data)
			sum := sha256.Sum256(data)
			if !strings.HasSuffix(f.Name, "/RECORD") {
				record += fmt.Sprintf("%s,sha256=%s,%d\n", f.Name, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
			} else if string(data) != record+f.Name+",,\n" {
				t.Errorf("RECORD is\n%smust be\n%s", data, record)
			}
			if script := strings.Contains(f.Name, "/scripts/"); script != (f.Mode()&0o111 != 0) && !strings.HasSuffix(f.Name, ".so") || !f.Modified.Equal(made.time.Truncate(2*time.Second)) && !f.Modified.Equal(made.time) {
				t.Errorf("%s: mode %v, time %v", f.Name, f.Mode(), f.Modified)
			}
		}
		const info, data = "gpreempt-1.2.3rc1+4.gabcdef0.dist-info/", "gpreempt-1.2.3rc1+4.gabcdef0.data/"
		if !strings.Contains(texts[info+"METADATA"], "\nName: gpreempt\nVersion: 1.2.3rc1+4.gabcdef0\n") || !strings.Contains(texts[info+"WHEEL"], "\nTag: "+tag+"\n") {
			t.Errorf("%s\n%s", texts[info+"METADATA"], texts[info+"WHEEL"])
		}
		for _, name := range []string{data + "scripts/gpreempt", data + "data/lib/libgpreempt.so", data + "purelib/gpreempt.py", info + "licenses/LICENSE", info + "licenses/third-party.txt", info + "RECORD"} {
			if texts[name] == "" {
				t.Errorf("no %s", name)
			}
		}
	}
}

func TestImage(t *testing.T) {
	folder := t.TempDir()
	for archive := tar.NewReader(open(t, only(t, "gpreempt-1.2.3-rc1-4.gabcdef0-oci.tar"))); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		path := filepath.Join(folder, filepath.FromSlash(head.Name))
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	top, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3-rc1-4.gabcdef0" {
		t.Fatalf("%+v, %v", manifest, err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err == nil {
		err = validate.Index(index)
	}
	if err != nil {
		t.Fatal(err)
	}
	manifest, err = index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var archs []string
	for _, one := range manifest.Manifests {
		image, err := index.Image(one.Digest)
		if err != nil {
			t.Fatal(err)
		}
		archs = append(archs, one.Platform.Architecture)
		testLayer(t, image, one.Platform)
	}
	if !slices.Equal(archs, made.archs()) {
		t.Errorf("architectures %q", archs)
	}
}

func testLayer(t *testing.T, image v1.Image, platform *v1.Platform) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil || config.Architecture != platform.Architecture || config.OS != "linux" || !config.Created.Equal(made.time) ||
		config.Config.Labels["org.opencontainers.image.revision"] != "abcdef0" {
		t.Errorf("%+v, %v", config, err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	compressed, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer compressed.Close()
	files, _, _ := unzipped(t, compressed)
	same(t, files, listed(t, platform.Architecture, "usr/"))
}

// The services run in the image, which has no libraries of the system.
func TestServicesAreStatic(t *testing.T) {
	all, err := made.inspect()
	if err != nil {
		t.Fatal(err)
	}
	for arch, programs := range all {
		static := []string{}
		for _, p := range programs {
			if p.glibc == "" {
				static = append(static, p.name)
			}
		}
		if slices.Sort(static); !slices.Equal(static, []string{"gpreempt-metrics", "gpreempt-nri", "gpreemptd"}) {
			t.Errorf("%s: static are %q", arch, static)
		}
	}
}

func TestBill(t *testing.T) {
	var bill cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(open(t, only(t, "*.cdx.json")), cyclonedx.BOMFileFormatJSON).Decode(&bill); err != nil {
		t.Fatal(err)
	}
	there := map[string]string{"gpreempt": ""}
	for _, c := range *bill.Components {
		if _, twice := there[c.BOMRef]; twice {
			t.Errorf("%s is there twice", c.BOMRef)
		}
		there[c.BOMRef] = ""
		if c.Hashes != nil {
			there[c.BOMRef] = (*c.Hashes)[0].Value
		}
	}
	used, of := map[string]bool{}, map[string][]string{}
	for _, d := range *bill.Dependencies {
		of[d.Ref] = *d.Dependencies
		for _, ref := range *d.Dependencies {
			used[ref] = true
			if _, is := there[ref]; !is {
				t.Errorf("%s depends on %s, which is no component", d.Ref, ref)
			}
		}
	}
	if len(used) != len(there)-1 {
		t.Errorf("%d of %d components are used", len(used), len(there))
	}
	for arch, folder := range made.binaries {
		for _, name := range builtNames(t, arch) {
			path, ref := filepath.Join(folder, name), arch+"/"+name
			data, err := os.ReadFile(path)
			if err != nil || there[ref] != sumOf(data) {
				t.Errorf("%s: %q, %v", ref, there[ref], err)
			}
			said, err := exec.Command("go", "version", "-m", path).Output()
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go")}
			for _, m := range regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`).FindAllStringSubmatch(string(said), -1) {
				if m[1] != own {
					want = append(want, "pkg:golang/"+m[1]+"@"+m[2])
				}
			}
			if slices.Sort(want); len(want) < 3 || !slices.Equal(slices.Sorted(slices.Values(of[ref])), want) {
				t.Errorf("%s depends on %q, must be %q", ref, of[ref], want)
			}
		}
	}
}

func TestSums(t *testing.T) {
	sums := map[string]string{}
	for in := bufio.NewScanner(open(t, filepath.Join(made.out, sumsName))); in.Scan(); {
		sum, name, _ := strings.Cut(in.Text(), "  ")
		sums[name] = sum
	}
	entries, err := os.ReadDir(made.out)
	if err != nil || len(entries) != len(sums)+1 {
		t.Fatalf("%d files, %d sums, %v", len(entries), len(sums), err)
	}
	for _, e := range entries {
		if data, err := os.ReadFile(filepath.Join(made.out, e.Name())); e.Name() != sumsName && (err != nil || sums[e.Name()] != sumOf(data)) {
			t.Errorf("%s: %s, %v", e.Name(), sums[e.Name()], err)
		}
	}
}

// The same binaries at another place, with other times and modes, in another time zone, give the same bytes.
func TestReproducible(t *testing.T) {
	here := time.Local
	time.Local = time.FixedZone("elsewhere", -5*3600)
	defer func() { time.Local = here }()
	again := newJob(t.TempDir(), madeAs)
	for arch, folder := range again.binaries {
		copies := t.TempDir()
		for _, name := range builtNames(t, arch) {
			data, err := os.ReadFile(filepath.Join(folder, name))
			path := filepath.Join(copies, name)
			if err := errors.Join(err, os.WriteFile(path, data, 0o600), os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0))); err != nil {
				t.Fatal(err)
			}
		}
		again.binaries[arch] = copies
	}
	if err := again.run(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(made.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		first, err := os.ReadFile(filepath.Join(made.out, e.Name()))
		second, errAgain := os.ReadFile(filepath.Join(again.out, e.Name()))
		if err := errors.Join(err, errAgain); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s differs (%v)", e.Name(), err)
		}
	}
}

func TestVersions(t *testing.T) {
	for given, want := range map[string][3]string{ // of a deb or rpm, a wheel, a file
		"v0.1.0":                    {"0.1.0", "0.1.0", "0.1.0"},
		"v0.1.0-dirty":              {"0.1.0+dirty", "0.1.0+dirty", "0.1.0-dirty"},
		"v1.20.3-rc.2":              {"1.20.3~rc2", "1.20.3rc2", "1.20.3-rc2"},
		"v1.2.3-alpha1":             {"1.2.3~alpha1", "1.2.3a1", "1.2.3-alpha1"},
		"v0.1.0-148-gdb9b096-dirty": {"0.1.0+148.gdb9b096.dirty", "0.1.0+148.gdb9b096.dirty", "0.1.0-148.gdb9b096.dirty"},
		"v0.2.0-beta.1-3-gdb9b096":  {"0.2.0~beta1+3.gdb9b096", "0.2.0b1+3.gdb9b096", "0.2.0-beta1-3.gdb9b096"},
		"db9b096-dirty":             {"0.0.0+gdb9b096.dirty", "0.0.0+gdb9b096.dirty", "0.0.0-gdb9b096.dirty"},
	} {
		v, err := parseVersion(given)
		if got := [3]string{v.native(), v.wheel(), v.tag()}; err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", given, got, err, want)
		}
	}
	for _, given := range []string{"", "unknown", "0.1.0", "v0.1", "v0.1.0-foo", "v0.1.0-rc.1-", "v0.1.0\n"} {
		if v, err := parseVersion(given); err == nil {
			t.Errorf("%q is %+v", given, v)
		}
	}
}

func TestListsThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"# a\n0644 a\n":       "line 2: must be a mode, a source and a place",
		"0644 a b c\n":        "line 1: must be",
		"0944 a b\n":          `line 1: mode "0944": must be octal, or link`,
		"01644 a b\n":         `line 1: mode "01644"`,
		"0644 a /etc/x\n":     `line 1: place "/etc/x": must be a path below`,
		"link a ../x\n":       `line 1: place "../x"`,
		"0644 a b\n\n":        "line 2: must be",
		"0644 a usr//b\n":     `line 1: place "usr//b"`,
		"links a share/doc\n": `line 1: mode "links"`,
	} {
		if list, err := parseFiles([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %s", text, list, err, want)
		}
	}
}

// Binaries of another architecture, or that are no binaries, are refused.
func TestBinariesThatAreRefused(t *testing.T) {
	arch := made.archs()[0]
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[arch]
	if _, err := inspect(filepath.Join(made.binaries[arch], "gpreempt"), other); err == nil || !strings.Contains(err.Error(), "not for "+other) {
		t.Errorf("%s as %s: %v", arch, other, err)
	}
	if _, err := inspect("main.go", arch); err == nil {
		t.Error("a source is no binary")
	}
}
