package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"time"
)

// writeArchive writes a tar.gz. Unpacked anywhere, its programs find each other.
func (j *job) writeArchive(arch string, files []file) error {
	name := "gpreempt-" + j.version.tag() + "-linux-" + arch
	return j.create(name+".tar.gz", func(out *os.File) error {
		compressed := gzip.NewWriter(out)
		if err := writeTar(compressed, name+"/", files, j.time); err != nil {
			return err
		}
		return compressed.Close()
	})
}

// writeTar writes files, with the folders above them, below a prefix.
func writeTar(out io.Writer, prefix string, files []file, at time.Time) error {
	archive := tar.NewWriter(out)
	head := func(kind byte, name, link string, mode fs.FileMode, size int) error {
		return archive.WriteHeader(&tar.Header{Typeflag: kind, Name: prefix + name, Linkname: link, Mode: int64(mode.Perm()), Size: int64(size),
			ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatPAX})
	}
	for _, folder := range folders(files, true) {
		if err := head(tar.TypeDir, folder+"/", "", 0o755, 0); err != nil {
			return err
		}
	}
	for _, f := range files {
		if f.link != "" {
			if err := head(tar.TypeSymlink, f.place, f.link, f.mode, 0); err != nil {
				return err
			}
			continue
		}
		data, err := os.ReadFile(f.source)
		if err != nil {
			return err
		}
		if err := head(tar.TypeReg, f.place, "", f.mode, len(data)); err != nil {
			return err
		}
		if _, err := archive.Write(data); err != nil {
			return err
		}
	}
	return archive.Close()
}
