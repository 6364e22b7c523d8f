package nfs

import "github.com/podvol/podvol/volume"

// OptionsOf returns what m would mount with, or why it would not.
func OptionsOf(m volume.Mounter) ([]string, error) {
	own := m.(*mounter)
	return own.options, own.refused
}

// NotMade is [notMade].
func NotMade(directory, base string, err, missing error) error {
	return notMade(directory, base, err, missing)
}
