package main

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// inWheel says where a wheel has a file of the lists, below its folders; "" where it has none. pip puts data below the environment's
// prefix, and can make no links.
func inWheel(place string) (folder, name string) {
	switch base := path.Base(place); path.Dir(place) {
	case "bin":
		return ".data/scripts/", base
	case "lib/gpreempt/lib":
		return ".data/data/lib/", base
	case "share/gpreempt/python":
		return ".data/purelib/", base
	case "include", "share/man/man1", "share/man/man5":
		return ".data/data/", place
	case "share/doc/gpreempt":
		switch base {
		case "copyright":
			return ".dist-info/licenses/", "LICENSE"
		case licensesName:
			return ".dist-info/licenses/", base
		}
	}
	return "", ""
}

// wheelTag says where a wheel may be installed: the oldest glibc that its programs run with.
func wheelTag(arch string, programs []program) string {
	return "py3-none-manylinux_" + strings.ReplaceAll(newestGlibc(programs), ".", "_") + "_" + architectures[arch].machine
}

const wheelMetadata = `Metadata-Version: 2.1
Name: gpreempt
Version: %s
Summary: %s
Home-page: %s
License: %s
License-File: LICENSE
License-File: third-party.txt
Requires-Python: >=3.8
Description-Content-Type: text/markdown

gpreempt %s.
The programs need not be changed, nor the driver:

    gpreempt run --priority lc -- python serve.py
    gpreempt run --priority be -- python train.py

A program may say that its work on the GPU comes soon, and start others:

    import gpreempt
    gpreempt.hint(300)                                              # work in 300 us
    gpreempt.run(["python", "train.py"], priority="be", check=True) # as subprocess.run

More: %s
`

// writeWheel writes a wheel by PEP 427: the commands, the library and the Python module.
func (j *job) writeWheel(arch string, files []file, programs []program) error {
	name, tag := "gpreempt-"+j.version.wheel(), wheelTag(arch, programs)
	return j.create(name+"-"+tag+".whl", func(out *os.File) error {
		w := wheel{zip: zip.NewWriter(out), job: j}
		for _, f := range files {
			folder, place := inWheel(f.place)
			if folder == "" {
				continue
			}
			data, err := os.ReadFile(f.source)
			if err != nil {
				return err
			}
			if err := w.add(name+folder+place, data, f.mode); err != nil {
				return err
			}
		}
		return w.finish(name+".dist-info/", tag)
	})
}

type wheel struct {
	zip    *zip.Writer
	job    *job
	record strings.Builder
}

func (w *wheel) add(place string, data []byte, mode fs.FileMode) error {
	header := &zip.FileHeader{Name: place, Method: zip.Deflate, Modified: w.job.time}
	header.SetMode(mode)
	out, err := w.zip.CreateHeader(header)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	fmt.Fprintf(&w.record, "%s,sha256=%s,%d\n", place, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
	_, err = out.Write(data)
	return err
}

// finish adds what describes the wheel; its record comes last, and names itself without a sum.
func (w *wheel) finish(folder, tag string) error {
	metadata := fmt.Sprintf(wheelMetadata, w.job.version.wheel(), summary, homepage, license, summary, homepage)
	about := fmt.Sprintf("Wheel-Version: 1.0\nGenerator: gpreempt\nRoot-Is-Purelib: false\nTag: %s\n", tag)
	for _, f := range []struct{ name, text string }{{"METADATA", metadata}, {"WHEEL", about}} {
		if err := w.add(folder+f.name, []byte(f.text), 0o644); err != nil {
			return err
		}
	}
	record := folder + "RECORD"
	fmt.Fprintf(&w.record, "%s,,\n", record)
	if err := w.add(record, []byte(w.record.String()), 0o644); err != nil {
		return err
	}
	return w.zip.Close()
}
