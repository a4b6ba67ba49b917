package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// job is the input of all packages.
type job struct {
	root      string // of the repository
	out       string // folder of the packages
	version   version
	commit    string
	time      time.Time         // of every file in a package
	binaries  map[string]string // folders, by architecture as Go names it
	generated string            // folder of files that are made here
}

func (j *job) archs() []string {
	var list []string
	for arch := range j.binaries {
		list = append(list, arch)
	}
	slices.Sort(list)
	return list
}

// create makes a package's file, and removes what write has left if it fails.
func (j *job) create(name string, write func(*os.File) error) error {
	path := filepath.Join(j.out, name)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(write(file), file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
