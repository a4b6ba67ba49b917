package main

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeImage writes an OCI image layout, in a tar: an image for each architecture, which has what the deb has in one layer and nothing
// else. Other images take the files from it (COPY --from), or pods mount it as a volume.
func (j *job) writeImage(files map[string][]file) error {
	annotations := map[string]string{
		"org.opencontainers.image.title": "gpreempt", "org.opencontainers.image.description": summary, "org.opencontainers.image.licenses": license,
		"org.opencontainers.image.source": homepage, "org.opencontainers.image.version": j.version.tag(),
	}
	if j.commit != "" {
		annotations["org.opencontainers.image.revision"] = j.commit
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range j.archs() {
		image, err := j.image(arch, files[arch], annotations)
		if err != nil {
			return err
		}
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	folder := filepath.Join(j.generated, "image")
	top, err := layout.Write(folder, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": j.version.tag()}
	if err := top.AppendIndex(mutate.Annotations(index, annotations).(v1.ImageIndex), layout.WithAnnotations(name)); err != nil {
		return err
	}
	return j.create("gpreempt-"+j.version.tag()+"-oci.tar", func(out *os.File) error { return j.tarFolder(out, folder) })
}

func (j *job) image(arch string, files []file, annotations map[string]string) (v1.Image, error) {
	var content bytes.Buffer
	if err := writeTar(&content, "usr/", files, j.time); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(base, &v1.ConfigFile{OS: "linux", Architecture: arch, Created: v1.Time{Time: j.time}, Config: v1.Config{Labels: annotations},
		RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: j.time}, CreatedBy: "gpreempt"}})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, annotations).(v1.Image), nil
}

// tarFolder writes a folder's contents, in the order of their names.
func (j *job) tarFolder(out io.Writer, folder string) error {
	archive := tar.NewWriter(out)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path[len(folder)+1:], Mode: 0o644, Size: int64(len(data)), ModTime: j.time, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = archive.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return archive.Close()
}
