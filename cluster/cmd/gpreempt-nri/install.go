package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/inject"
	"github.com/gpreempt/gpreempt/internal/cli"
)

// currentLink is the link to the version that new containers get.
const currentLink = "current"

func installCommand() *cobra.Command {
	var from, to, proc string
	command := &cobra.Command{
		Use:   "install --to FOLDER",
		Short: "Put the library and the command into a folder of the host, a folder per version",
		Long: `Copies what containers get into FOLDER/VERSION and then turns the link FOLDER/current to it. Nothing that is there is ever written into, so
containers that run go on with the version that they have. A version that was replaced an hour ago, and is mounted in no container, is removed.`,
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if to == "" {
				return cli.Usage(errors.New("install: --to is missing"))
			}
			return install(c.OutOrStdout(), from, to, proc)
		},
	}
	command.Flags().StringVar(&from, "from", "/usr", "`prefix` with bin/gpreempt and lib/gpreempt")
	command.Flags().StringVar(&to, "to", "", "`folder` of the host, on a file system that programs may be run from")
	command.Flags().StringVar(&proc, "proc", "/proc", "where all processes of the host are seen")
	return command
}

// file is one that containers get, by its place below inject.Folder.
type file struct{ source, place string }

func install(out io.Writer, from, to, proc string) error {
	files := []file{{filepath.Join(from, "bin/gpreempt"), strings.TrimPrefix(inject.Command, inject.Folder)}}
	places := inject.Libraries()
	library := strings.TrimPrefix(places[0], inject.Folder)
	files = append(files, file{filepath.Join(from, "lib/gpreempt", library), library})
	name, err := versionName(files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(to, name)); errors.Is(err, fs.ErrNotExist) {
		err = put(files, places, to, name)
		if err != nil {
			return fmt.Errorf("install into %s: %w", to, err)
		}
	} else if err != nil {
		return err
	}
	if err := runnable(filepath.Join(to, name, library)); err != nil {
		return err
	}
	if before, err := os.Readlink(filepath.Join(to, currentLink)); before != name {
		if err == nil { // none, the first time
			err = os.Chtimes(filepath.Join(to, before), time.Time{}, time.Now())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := turn(to, name); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, filepath.Join(to, name))
	return clean(to, proc, name)
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// versionName is the version with a part of the content's sum, so that another content has another folder.
func versionName(files []file) (string, error) {
	sum := sha256.New()
	for _, f := range files {
		in, err := os.Open(f.source)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(sum, in)
		if err = errors.Join(err, in.Close()); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s-%.6x", unfit.ReplaceAllString(cli.Version(version), "-"), sum.Sum(nil)), nil
}

const unfinished = ".unfinished-"

// put makes a version's folder, aside, so that there is never half of one.
func put(files []file, libraries []string, to, name string) error {
	aside, err := os.MkdirTemp(to, unfinished)
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside) // there is none if all went well
	for _, f := range files {
		if err := copyFile(f.source, filepath.Join(aside, f.place)); err != nil {
			return err
		}
	}
	for _, place := range libraries[1:] { // for the other values of $LIB
		link := filepath.Join(aside, strings.TrimPrefix(place, inject.Folder))
		target, err := filepath.Rel(filepath.Dir(link), filepath.Join(aside, strings.TrimPrefix(libraries[0], inject.Folder)))
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(target, link)); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chmod(aside, 0o755), syncFolder(aside)); err != nil {
		return err
	}
	return errors.Join(os.Rename(aside, filepath.Join(to, name)), syncFolder(to))
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close())
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// turn lets the link lead to a version, in one step.
func turn(to, name string) error {
	aside := filepath.Join(to, unfinished+currentLink)
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, aside); err != nil {
		return err
	}
	return errors.Join(os.Rename(aside, filepath.Join(to, currentLink)), syncFolder(to))
}

// runnable sees that the file system lets code be mapped: on many nodes /run and others do not.
func runnable(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	code, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: no program can be run from that file system (noexec): choose another folder of the host", path)
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", path, err)
	}
	return unix.Munmap(code)
}

// mayBeWanted is for how long a plugin may have a version in hand that was replaced, for a container that is not created yet.
const mayBeWanted = time.Hour

// clean removes versions, and unfinished ones, that no container needs. A container keeps its folder as a mount: its programs would not
// find the library there any more.
func clean(to, proc, current string) error {
	entries, err := os.ReadDir(to)
	if err != nil {
		return err
	}
	var old []string
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() != current && made(to, entry.Name()) && time.Since(info.ModTime()) > mayBeWanted {
			old = append(old, entry.Name())
		}
	}
	if len(old) == 0 {
		return nil
	}
	used, err := mounted(proc)
	if err != nil {
		return err
	}
	for _, name := range old {
		if slices.ContainsFunc(used, func(root string) bool {
			return strings.HasSuffix(root, "/"+name) || strings.Contains(root, "/"+name+"/")
		}) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

var versioned = regexp.MustCompile(`-[0-9a-f]{12}$`) // as versionName ends

// made says that install has made a folder. Others have theirs beside it: the folder of the host may be /opt, or an installation's prefix.
func made(to, name string) bool {
	if strings.HasPrefix(name, unfinished) {
		return true
	}
	info, err := os.Lstat(filepath.Join(to, name, strings.TrimPrefix(inject.Libraries()[0], inject.Folder)))
	return versioned.MatchString(name) && err == nil && info.Mode().IsRegular()
}

// mounted lists what is mounted anywhere on the host, by its path in its own file system.
func mounted(proc string) (roots []string, err error) {
	tables, err := filepath.Glob(filepath.Join(proc, "[0-9]*/mountinfo"))
	if err != nil || len(tables) == 0 {
		return nil, fmt.Errorf("%s: no process is seen, so what is mounted is not known (%w)", proc, err)
	}
	for _, table := range tables {
		text, err := os.ReadFile(table)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // it has ended
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 4 && !slices.Contains(roots, fields[3]) {
				roots = append(roots, fields[3])
			}
		}
	}
	return roots, nil
}
