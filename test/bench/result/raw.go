package result

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// A result file is what people read. Large runs also give samples of each request and long lists. These are in the raw form of the same
// results: a compressed file beside it, which it names.

const rawLimit = 1 << 30 // bytes of a raw form; more is no result of ours

func rawPath(path string) string { return strings.TrimSuffix(path, ".json") + ".raw.json.gz" }

// writeRaw writes the raw form of a result file.
func writeRaw(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode raw results: %w", err)
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		_, err = zip.Write(text)
	}
	if err = errors.Join(err, zip.Close()); err != nil {
		return fmt.Errorf("compress raw results: %w", err)
	}
	if err := os.WriteFile(rawPath(path), packed.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write raw results: %w", err)
	}
	return nil
}

// ReadRaw reads the raw form that a result file names.
func ReadRaw(path, name string, value any) error {
	if name != filepath.Base(name) {
		return fmt.Errorf("read results %s: raw = %q: must be the name of a file beside it", path, name)
	}
	file, err := os.Open(filepath.Join(filepath.Dir(path), name))
	if err != nil {
		return fmt.Errorf("read raw results of %s: %w", path, err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("read raw results %s: %w", file.Name(), err)
	}
	text, err := io.ReadAll(io.LimitReader(zip, rawLimit))
	if err == nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		return fmt.Errorf("read raw results %s: %w", file.Name(), err)
	}
	return nil
}

// WriteJSON writes a file that is complete where it is there.
func WriteJSON(path string, value any, indent string) error {
	text, err := json.MarshalIndent(value, "", indent)
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
