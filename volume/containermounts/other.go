//go:build !unix

package containermounts

import "os"

// No file is looked up here safely, so that [Resolve] fails.

func openPlace(string) (*os.File, error) { return nil, unsupported("Resolve") }

func identify(*os.File) (fileIdentity, error) { return fileIdentity{}, unsupported("Resolve") }

func identifyAt(string) (fileIdentity, error) { return fileIdentity{}, unsupported("Resolve") }

func nameOf(*os.File) (string, error) { return "", unsupported("Resolve") }
