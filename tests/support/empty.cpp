// SPDX-License-Identifier: Apache-2.0
// A library without anything in it.
