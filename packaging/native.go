package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// writeNative writes a deb or an rpm. It runs nothing when it is installed or removed.
func (j *job) writeNative(form, arch string, p part, list []file, programs []program) error {
	packager, err := nfpm.Get(form)
	if err != nil {
		return err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: p.name, Arch: arch, Platform: "linux", Version: j.version.native(), VersionSchema: "none",
		Section: "utils", Priority: "optional", Maintainer: maintainer, Description: p.summary + "\n" + p.description, Homepage: homepage, License: license,
		MTime: j.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{Contents: contents(form, list), RPM: nfpm.RPM{BuildHost: "localhost", Summary: p.summary}},
	})
	if form == "rpm" {
		info.Release = "1"
	}
	if glibc := newestGlibc(of(list, programs)); glibc == "" { // nothing in it has C
	} else if form == "deb" {
		info.Depends = []string{fmt.Sprintf("libc6 (>= %s)", glibc)}
	} else {
		info.Depends = []string{fmt.Sprintf("libc.so.6(GLIBC_%s)(64bit)", glibc)} // as rpm's own tools say it
	}
	if p.name == brokerName { // which looks for programs without gpreempt by its command
		info.Recommends = []string{parts[0].name}
	}
	if err := info.Validate(); err != nil {
		return err
	}
	return j.create(packager.ConventionalFileName(info), func(out *os.File) error { return packager.Package(info, out) })
}

// of are the programs that are in a list.
func of(list []file, programs []program) (some []program) {
	for _, p := range programs {
		if slices.ContainsFunc(list, func(f file) bool { return f.built && filepath.Base(f.source) == p.name }) {
			some = append(some, p)
		}
	}
	return some
}

// contents are the files of a deb or an rpm. Folders that are gpreempt's alone are removed with it.
func contents(form string, list []file) (all files.Contents) {
	put := func(place, source, kind string, mode os.FileMode) {
		all = append(all, &files.Content{Source: source, Destination: place, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode}})
	}
	add := func(place, source, kind string, mode os.FileMode) { put("/usr/"+place, source, kind, mode) }
	for _, folder := range folders(list, false) {
		add(folder, "", files.TypeDir, 0o755)
	}
	for _, f := range list {
		switch {
		case f.link != "":
			add(f.place, f.link, files.TypeSymlink, 0o777)
		case path.Base(f.place) == "copyright" && form == "rpm":
			add(f.place, f.source, files.TypeRPMLicense, f.mode)
		default:
			add(f.place, f.source, files.TypeFile, f.mode)
		}
		if f.place == policySource {
			put(path.Dir(policyPlace), "", files.TypeDir, 0o755)
			put(policyPlace, f.source, files.TypeConfigNoReplace, f.mode)
		}
	}
	// The loader looks for names without a path in lib64.
	if form == "rpm" && slices.ContainsFunc(list, func(f file) bool { return f.place == "lib/libgpreempt.so" }) {
		add("lib64/libgpreempt.so", "../lib/gpreempt/lib/libgpreempt.so", files.TypeSymlink, 0o777)
	}
	return all
}
