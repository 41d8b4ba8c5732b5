# SPDX-License-Identifier: Apache-2.0
import logging


def init_logger(name):
    return logging.getLogger(name)
