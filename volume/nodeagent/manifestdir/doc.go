// Package manifestdir follows a directory of manifests, as a kubelet follows the
// directory of its static pods. [Watch] reports changes. [Directory] reads the
// files and returns the wanted objects.
//
// The removal of a file removes its pods, and with them their data. So the
// package is careful about removals:
//
//   - Each file stands for itself. A file keeps its last good version while it
//     cannot be read, is invalid, is being written, or has an object of another
//     file.
//   - While one file is not in force as it is, nothing counts as removed: the
//     missing object may have moved into that file.
//   - A file counts as removed once it has been missing for half a second.
//   - A directory that is missing, empty or another one than before may be one
//     whose disk is not mounted. Then [Directory.Question] asks a person.
//   - The names of all objects are kept on disk ([Config].KnownFile), before any
//     of the objects is returned. So the next start knows them.
//   - Only objects that were removed file by file while the package watched are
//     in [Directory.Taken]. Their data may be deleted.
package manifestdir
