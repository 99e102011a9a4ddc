// Command kind is kind's own command. Called with the word image alone, it prints the node image of its version.
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/kind/cmd/kind/app"
	"sigs.k8s.io/kind/pkg/apis/config/defaults"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "image" {
		fmt.Println(defaults.Image)
		return
	}
	app.Main()
}
