package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// file is a file of a package, or a link.
type file struct {
	place  string // below the prefix
	source string // path of the file
	built  bool   // it is of one architecture
	link   string // what the link holds; "" for a file
	mode   fs.FileMode
}

// architectures says how others name an architecture.
var architectures = map[string]struct{ machine string }{
	"amd64": {"x86_64"},
	"arm64": {"aarch64"},
}

// part is a package of a distribution. The archive and the image have the files of all.
type part struct {
	name, list           string // list is a file in the form of gpreempt.files, below the root
	summary, description string
}

var parts = []part{{"gpreempt", "packaging/gpreempt.files", summary, description}, {brokerName, "packaging/gpreemptd.files", brokerSummary, brokerDescription}}

const licensesName = "third-party.txt"

// files reads the lists of some parts, for an architecture. Each has the licenses too.
func (j *job) files(arch string, some ...part) (list []file, err error) {
	for _, p := range some {
		text, err := os.ReadFile(filepath.Join(j.root, p.list))
		if err != nil {
			return nil, err
		}
		files, err := parseFiles(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.list, err)
		}
		for i := range files {
			if built, is := strings.CutPrefix(files[i].source, "BUILT/"); is {
				files[i].source, files[i].built = filepath.Join(j.binaries[arch], built), true
			} else {
				files[i].source = filepath.Join(j.root, files[i].source)
			}
		}
		list = append(list, files...)
		list = append(list, file{place: "share/doc/" + p.name + "/" + licensesName, source: filepath.Join(j.generated, licensesName), mode: 0o644})
	}
	slices.SortFunc(list, func(a, b file) int { return cmp.Compare(a.place, b.place) })
	for i, f := range list[1:] {
		if f.place == list[i].place {
			return nil, fmt.Errorf("%s is listed twice", f.place)
		}
	}
	return list, nil
}

// parseFiles reads a list in the form of gpreempt.files.
func parseFiles(text []byte) (list []file, err error) {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if bytes.HasPrefix(line, []byte("#")) {
			continue
		}
		fields := strings.Fields(string(line))
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d: must be a mode, a source and a place", number)
		}
		f := file{place: fields[2], source: fields[1]}
		if fields[0] == "link" {
			f.link, f.source, f.mode = f.source, "", fs.ModeSymlink|0o777
		} else if mode, err := strconv.ParseUint(fields[0], 8, 9); err == nil {
			f.mode = fs.FileMode(mode)
		} else {
			return nil, fmt.Errorf("line %d: mode %q: must be octal, or link", number, fields[0])
		}
		if !fs.ValidPath(f.place) {
			return nil, fmt.Errorf("line %d: place %q: must be a path below the prefix", number, f.place)
		}
		list = append(list, f)
	}
	return list, nil
}

// folders lists the folders above files, those that are gpreempt's alone or all.
func folders(files []file, all bool) (list []string) {
	for _, f := range files {
		for folder := path.Dir(f.place); folder != "."; folder = path.Dir(folder) {
			if own := strings.Contains("/"+folder, "/gpreempt"); (all || own) && !slices.Contains(list, folder) {
				list = append(list, folder)
			}
		}
	}
	slices.Sort(list)
	return list
}
