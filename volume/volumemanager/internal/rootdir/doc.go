// Package rootdir is a manager's root directory: its layout, its owner, and its
// word about volumes.
//
//   - layout: [Check] refuses a directory that others can change
//   - [Lock]: one owner at a time, also after a crash
//   - [Records]: which volumes may be mounted, in a journal; [ReadRecords] reads it
//     beside an owner
//   - [VolumeDirs], [Mounts]: which directories there are, and what the mount table has
//     mounted below the root
//   - [PodDirs]: the directories around a pod's volumes, which go with the last of them
//   - [FindHelpers], [EndHelpers]: mount commands that a dead owner has left
//
// It knows volumes by their [Key] alone, and neither pods nor desired states.
package rootdir
