// Command packaging makes gpreempt's packages from binaries that are built: deb, rpm, an archive, a wheel, an OCI image, a bill of
// materials, and checksums of them all. The same binaries, version and time give the same bytes.
//
// It is a module of its own, so that what it needs is no dependency of gpreempt.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	j := job{binaries: map[string]string{}}
	given, seconds := "", int64(0)
	flag.StringVar(&j.root, "root", ".", "`folder` of the repository")
	flag.StringVar(&j.out, "out", "build/packages", "`folder` for the packages")
	flag.StringVar(&given, "version", "", "`version`, as git describe --tags says it")
	flag.StringVar(&j.commit, "commit", "", "`commit` that was built")
	flag.Int64Var(&seconds, "time", 0, "time of every file in a package, in `seconds` since 1970")
	flag.Func("binaries", "`architecture=folder` of the binaries; more than once for more architectures", func(value string) error {
		arch, folder, found := strings.Cut(value, "=")
		if _, known := architectures[arch]; !known || !found {
			return fmt.Errorf("must be amd64=FOLDER or arm64=FOLDER")
		}
		j.binaries[arch] = folder
		return nil
	})
	flag.Parse()
	j.time = time.Unix(seconds, 0).UTC()
	err := errors.New("no --binaries")
	if len(j.binaries) > 0 {
		j.version, err = parseVersion(given)
	}
	if err == nil {
		err = j.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

// run replaces the packages of an earlier run.
func (j *job) run() error {
	generated, err := os.MkdirTemp("", "gpreempt-packaging-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(generated)
	j.generated = generated
	if err := j.empty(); err != nil {
		return err
	}
	programs, err := j.inspect()
	if err != nil {
		return err
	}
	if err := j.writeLicenses(programs); err != nil {
		return fmt.Errorf("licenses: %w", err)
	}
	all := map[string][]file{}
	for _, arch := range j.archs() {
		if all[arch], err = j.files(arch, parts...); err == nil {
			err = j.writePackages(arch, all[arch], programs[arch])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	if err := j.writeImage(all); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := j.writeBill(programs); err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	return j.writeSums()
}

// empty makes the folder, or removes an earlier run's files from it.
func (j *job) empty() error {
	before, err := os.ReadDir(j.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(j.out, sumsName)); err != nil && len(before) > 0 {
		return fmt.Errorf("%s is neither empty nor of an earlier run: %w", j.out, err)
	}
	return errors.Join(os.RemoveAll(j.out), os.MkdirAll(j.out, 0o755))
}

// writePackages writes the packages for one architecture.
func (j *job) writePackages(arch string, all []file, programs []program) error {
	for _, p := range parts {
		files, err := j.files(arch, p)
		if err != nil {
			return err
		}
		for _, form := range []string{"deb", "rpm"} {
			if err := j.writeNative(form, arch, p, files, programs); err != nil {
				return fmt.Errorf("%s of %s: %w", form, p.name, err)
			}
		}
	}
	if err := j.writeArchive(arch, all); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if err := j.writeWheel(arch, all, programs); err != nil {
		return fmt.Errorf("wheel: %w", err)
	}
	return nil
}

const sumsName = "SHA256SUMS"

// writeSums writes what sha256sum -c reads.
func (j *job) writeSums() error {
	packages, err := os.ReadDir(j.out) // sorted
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, entry := range packages {
		data, err := os.ReadFile(filepath.Join(j.out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(data), entry.Name())
	}
	return os.WriteFile(filepath.Join(j.out, sumsName), []byte(lines.String()), 0o644)
}
