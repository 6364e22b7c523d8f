// Package runroot gives each run of a command with a pod's volumes a root
// directory of its own. It also finds the directories of killed runs. Directories
// of other users, and directories that other users can change, are refused. Files
// are found and removed only in directories that were opened and checked.
package runroot
